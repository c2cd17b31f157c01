"""`python -m kvstore.master`: a master configured by the environment (KVSTORE_MASTER_*)."""

from __future__ import annotations

import sys

import uvloop
from pydantic import ValidationError

from kvstore.common.errors import KvstoreError
from kvstore.common.logs import configure_logging
from kvstore.master.config import MasterSettings
from kvstore.master.server import run


def main() -> int:
    try:
        settings = MasterSettings()
    except ValidationError as error:
        print(error, file=sys.stderr)
        return 2
    configure_logging(settings.log_level, settings.log_format)
    try:
        uvloop.run(run(settings))
    except (KvstoreError, OSError) as error:
        print(f"kvstore master: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
