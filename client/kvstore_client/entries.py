"""A batch in which some entries can't be what they should be: the others are done all the same."""

from collections.abc import Callable

from kvstore_client.signal_handlers import is_from_signal_handler

BAD_ENTRY = (TypeError, ValueError, BufferError, OverflowError)
"""What an argument raises that is no key, no memory, or not the memory of such a key."""


def runs_without_fault(
    start: int, stop: int, run: Callable[[slice], object], fault: Callable[[Exception], None]
) -> None:
    """Calls `run` with the whole of start..stop. Where it raises BAD_ENTRY, before it has done anything, with each half
    instead, and so on; an entry that raises alone goes to `fault`, once each.
    """
    left = [slice(start, stop)]
    while left:
        part = left.pop()
        try:
            run(part)
        except BAD_ENTRY as error:
            if is_from_signal_handler(error):
                raise
            middle = (part.start + part.stop) // 2
            if middle == part.start:
                fault(error)
            else:
                left += [slice(middle, part.stop), slice(part.start, middle)]
