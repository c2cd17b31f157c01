"""One client that asks all the time: the longest answer is the longest time that the master did nothing else.

usage: python -m benchmarks.scale.probe PORT NAMESPACE   (until stdin ends; prints its result as JSON)
"""

from __future__ import annotations

import json
import sys
import threading
import time

from benchmarks.scale.connection import Connection
from benchmarks.scale.pages import fingerprints
from kvstore_client.protocol import Op, u32s

KEYS = 128
PAUSE_S = 0.001


def main() -> None:
    port, ns = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
    body = ns + u32s([KEYS, 0]) + fingerprints(0, KEYS)
    over = threading.Event()

    def until_told() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=until_told, daemon=True).start()
    took_us: list[float] = []
    slept_us: list[float] = []  # beyond what was asked for: how long this process waits for a core
    with Connection(port) as connection:
        print("ready", flush=True)
        while not over.is_set():
            began = time.perf_counter()
            connection.call(Op.EXISTS, body)
            took_us.append((time.perf_counter() - began) * 1e6)
            began = time.perf_counter()
            time.sleep(PAUSE_S)
            slept_us.append((time.perf_counter() - began - PAUSE_S) * 1e6)
    print(json.dumps({"took_us": took_us, "slept_us": slept_us}), flush=True)


if __name__ == "__main__":
    main()
