"""What is measured, by name. A new case is a module here and one line below."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.cases import commit, exists, idle, mixed, small, transfers
from benchmarks.cases.base import Case, Setting

CASES: dict[str, Callable[[Setting], Case]] = {
    "transfers": transfers.Transfers,
    "exists": exists.Exists,
    "mixed": mixed.Mixed,
    "small": small.SmallObjects,
    "commit": commit.Commit,
    "idle": idle.Idle,
}

__all__ = ["CASES", "Case", "Setting"]
