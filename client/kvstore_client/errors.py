"""The one exception of the client's own that its users meet, and whose the others are."""

import signal
import threading
from types import CodeType
from typing import Any


class ConfigError(ValueError):
    """A setting has a value that can't work; the message names the setting, the value, what is allowed and where the
    value comes from.

    Raised by constructors only, before anything is connected, and the same on every process that has the same
    settings.
    """

    def __init__(self, option: str, problem: str, origin: str = "") -> None:
        super().__init__(f"{option}: {problem}" + (f" (from {origin})" if origin else ""))
        self.option = option
        self.origin = origin


def is_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler of the program raised it, in the middle of whatever the main thread did: a timeout
    or an interruption, and never an answer to what was asked of the store.
    """
    if threading.current_thread() is not threading.main_thread():
        return False  # Python runs handlers nowhere else
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    while hasattr(handler, "func"):  # functools.partial
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    code = getattr(handler, "__code__", None)
    return code or getattr(getattr(type(handler), "__call__", None), "__code__", None)  # noqa: B004
