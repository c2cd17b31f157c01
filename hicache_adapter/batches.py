"""A batch of SGLang's in which one page can't be what it should be: the others are done all the same."""

from collections.abc import Callable, Sequence
from typing import Any

from kvstore_client.entries import BAD_ENTRY, runs_without_fault
from kvstore_client.signal_handlers import is_from_signal_handler


def item_count(where: Any) -> int:
    """Of host indices, or of a list of flat pages."""
    # len() of a tensor takes many times as long.
    return int(where.numel()) if hasattr(where, "numel") else len(where)


def page_by_page_where_one_is_bad(
    keys: Sequence[str],
    where: Any,
    items_a_page: int,
    run: Callable[[Sequence[str], Any, int], list[bool]],
    fault: Callable[[Exception], None],
) -> list[bool]:
    """The answers of `run(keys, where, position of the first key)`, one truth a key. Pages that it refuses with a
    TypeError or ValueError, before it has done anything, are left out of their batch, answered False, and go to `fault`.

    `where` has `items_a_page` items a key: host indices, or a flat page. ValueError where it has more or fewer, which `run`
    must refuse itself.
    """
    try:
        return run(keys, where, 0)
    except BAD_ENTRY as error:
        if is_from_signal_handler(error):
            raise
    items = item_count(where)
    if items != len(keys) * items_a_page:
        raise ValueError(f"{len(keys)} pages of {items_a_page} slots don't lie in {items}")
    answers = [False] * len(keys)

    def part(at: slice) -> None:
        answers[at] = run(keys[at], where[at.start * items_a_page : at.stop * items_a_page], at.start)

    runs_without_fault(0, len(keys), part, fault)
    return answers
