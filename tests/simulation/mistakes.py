"""A mistake in the product, for the length of a run: the simulation has to notice it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from simulation.scenarios import Scenario

Replacement = tuple[Any, str, Any]  # owner, name, what stands in its place


@dataclass(frozen=True)
class Mistake:
    """One of `rules` is found broken within `seeds_max` seeds of the scenario."""

    name: str
    scenario: Scenario
    made: Callable[[], AbstractContextManager[None]]
    rules: tuple[str, ...]
    seeds_max: int = 10


@contextmanager
def replaced(*replacements: Replacement) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, replacement in replacements:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield
