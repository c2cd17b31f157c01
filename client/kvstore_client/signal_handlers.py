"""Telling what a signal handler of the program raised from what went wrong in a call."""

import signal
import threading
from types import CodeType, FrameType
from typing import Any


def is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the program raised it, in the middle of whatever the main thread did: a timeout
    or an interruption, and never an answer to what was asked of the store.

    Python hands a handler the frame that it interrupts, which is the one before it in the traceback; nothing that
    is called in the ordinary way gets that. A handler that has dropped its arguments is known while it is installed.
    """
    if threading.current_thread() is not threading.main_thread():
        return False  # Python runs handlers nowhere else
    installed = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    interrupted: FrameType | None = None
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code in installed or (interrupted is not None and _was_given(frame, interrupted)):
            return True
        interrupted = frame
        traceback = traceback.tb_next
    return False


def _was_given(frame: FrameType, other: FrameType) -> bool:
    """Whether `other` is among the arguments of the function that runs in `frame`."""
    for value in frame.f_locals.values():
        if value is other or (isinstance(value, tuple) and any(item is other for item in value)):
            return True
    return False


def _code_of(handler: Any) -> CodeType | None:
    while hasattr(handler, "func"):  # functools.partial
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    code = getattr(handler, "__code__", None)
    return code or getattr(getattr(type(handler), "__call__", None), "__code__", None)  # noqa: B004
