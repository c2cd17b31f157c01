"""Entry point of the `kvstore` script: on a base install it names the missing extra instead of showing a traceback."""

from __future__ import annotations


def main() -> None:
    """Runs the command line, which needs the packages of the `[server]` extra."""
    try:
        from kvstore.cli.main import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("kvstore"):
            raise
        raise SystemExit(
            f"kvstore: the server side is not installed ({error.name} is missing): "
            "pip install 'hicache-kvstore[server]'"
        ) from None
    run()
