"""Entry point of the `kvstore` script: on a base install it names the missing extra instead of showing a traceback."""

from __future__ import annotations

import signal


def main() -> None:
    """Runs the command line, which needs the packages of the `[server]` extra."""
    # Loading takes a second, and much more on a busy machine: Ctrl-C ends it without a traceback.
    at_ctrl_c = signal.getsignal(signal.SIGINT)
    if at_ctrl_c is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from kvstore.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("kvstore"):
            raise
        raise SystemExit(
            f"kvstore: the server side is not installed ({error.name} is missing): "
            "pip install 'hicache-kvstore[server]'"
        ) from None
    signal.signal(signal.SIGINT, at_ctrl_c)
    run()


if __name__ == "__main__":
    main()
