"""What an engine does to the store, without the engine: `engine_worker.py CONFIG ACTION FIRST COUNT BYTES`.

CONFIG is the JSON of --hicache-storage-backend-extra-config, read by the adapter's own code. ACTION puts or gets pages
FIRST..FIRST+COUNT-1, whose contents follow from their numbers; `try` gets them without waiting for a master first. The last line of output is JSON: how many were stored or
came back byte-equal, how many came back different, and the client's counters.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time

from hicache_adapter import AdapterConfig
from kvstore_client import Client
from kvstore_client.namespace import Namespace

OPEN_TIMEOUT_S = 20.0


def content(number: int, size_bytes: int) -> bytes:
    return random.Random(number).randbytes(size_bytes)


def key(number: int) -> bytes:
    return hashlib.sha256(f"page {number}".encode()).digest()


def main() -> None:
    config = AdapterConfig.from_extra_config(json.loads(sys.argv[1]), {})
    action = sys.argv[2]
    first, count, size_bytes = map(int, sys.argv[3:6])
    numbers = range(first, first + count)
    keys = [key(number) for number in numbers]
    with Client.from_config(config.client_config("engine")) as client:
        namespace = client.namespace("deploy-test")
        opened = _open(namespace, 0.0 if action == "try" else OPEN_TIMEOUT_S)
        pages = namespace.pages()
        good = different = 0
        if action == "put":
            good = sum(pages.batch_put(keys, [content(number, size_bytes) for number in numbers]))
        else:
            for number, found in zip(numbers, pages.batch_get(keys), strict=True):
                if found is not None:
                    equal = found == content(number, size_bytes)
                    good += equal
                    different += not equal
        print(json.dumps({"opened": opened, "good": good, "different": different, "stats": client.stats()}))


def _open(namespace: Namespace, timeout_s: float) -> bool:
    """Waits for a master that can open it: after a fail-over there is none for a moment."""
    ends_at = time.monotonic() + timeout_s
    while not namespace.open():
        if time.monotonic() >= ends_at:
            return False
        time.sleep(0.05)
    return True


if __name__ == "__main__":
    main()
