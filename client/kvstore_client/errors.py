"""The one exception of the client's own that its users meet."""


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
