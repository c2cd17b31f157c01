"""A client in a process of its own that puts and gets until told to stop, and tells everything it saw.

`python client_worker.py '<JSON options>'`; prints a line of JSON for each acked batch, and a report at the
end (stdin closed).
Content follows from the key (support.pages), so each byte that comes back is checked.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from kvstore_client import Client
from support import pages


def starved_ms() -> float:
    """How long threads of this process have been ready to run without being given a CPU, and how long the machine's
    CPUs have been given to other machines.

    That is the machine's doing, not the store's, and next to nothing on a machine that is not overloaded.
    """
    total_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            total_ns += int(path.read_text().split()[1])
    stolen_ticks = int(Path("/proc/stat").read_text().split(maxsplit=9)[8])
    return total_ns / 1e6 + stolen_ticks * 1000 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    options = json.loads(sys.argv[1])
    page_bytes = options["page_bytes"]
    rng = random.Random(options["seed"])
    report: dict[str, Any] = {
        "event": "report",
        "calls": 0,
        "hits": 0,
        "misses": 0,
        "refused": 0,
        "slowest_ms": 0.0,
        "late": [],
        "wrong": [],
        "exceptions": [],
    }
    client = Client(
        options["masters"],
        deadline_ms=options["deadline_ms"],
        same_host=options["same_host"],
        tcp=options["tcp"],
        rdma=options["rdma"],
        rdma_library=options["rdma_library"],
    )
    namespace = client.namespace(options["namespace"])

    def call(verb: str, *arguments: Any) -> Any:
        starved_before_ms = starved_ms()
        started = time.monotonic()
        try:
            return getattr(namespace, verb)(*arguments)
        except Exception as error:
            report["exceptions"].append(f"{verb}: {error!r}")
            return None
        finally:
            elapsed_ms = (time.monotonic() - started) * 1000
            report["calls"] += 1
            report["slowest_ms"] = max(report["slowest_ms"], elapsed_ms)
            starved = max(0.0, starved_ms() - starved_before_ms)
            if elapsed_ms - starved > options["deadline_ms"] + 100:
                report["late"].append(f"{verb}: {elapsed_ms:.0f} ms, of them {starved:.0f} ms without a CPU")

    def read(keys: list[str]) -> list[Any]:
        """By either way that there is: into fresh bytes, or into memory of our own."""
        if rng.random() < 0.5:
            return call("batch_get", keys) or [None] * len(keys)
        memory = [bytearray(page_bytes) for _ in keys]
        found = call("batch_get_into", keys, memory) or [False] * len(keys)
        return [page if ok else None for page, ok in zip(memory, found, strict=True)]

    acked: list[str] = []
    pending: list[str] = []
    made = 0
    while not select.select([sys.stdin], [], [], options["pause_s"])[0]:
        if made < options["pages_max"] or pending:
            while len(pending) < options["batch"] and made < options["pages_max"]:
                pending.append(f"{options['name']}/{made}")
                made += 1
            done = call("batch_put", pending, [pages.content(key, page_bytes) for key in pending])
            if done:
                stored = [key for key, ok in zip(pending, done, strict=True) if ok]
                report["refused"] += len(pending) - len(stored)
                # The others are tried again: a put of a page that is there changes nothing.
                pending = [key for key in pending if key not in set(stored)]
                acked += stored
                if stored:
                    print(json.dumps({"event": "acked", "keys": stored}), flush=True)
        if acked and options["reads"]:
            wanted = rng.sample(acked, min(options["batch"], len(acked)))
            for key, value in zip(wanted, read(wanted), strict=True):
                if value is None:
                    report["misses"] += 1
                    continue
                report["hits"] += 1
                if fault := pages.fault(key, value, page_bytes):
                    report["wrong"].append(fault)
    report["counters"] = client.stats()
    client.close()
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
