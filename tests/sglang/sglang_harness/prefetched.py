"""What a prefetch brought."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Prefetched:
    """Of one prompt."""

    hit_tokens: int
    completed_tokens: int
    host_indices: Any  # None when nothing was worth loading
    restorable: list[int] = field(default_factory=list)  # prefixes, in pages
    side_indices: dict[str, Any] = field(default_factory=dict)  # by pool, where pages were loaded to
    side_pages: dict[str, int] = field(default_factory=dict)  # by pool, how many SGLang counts as loaded
