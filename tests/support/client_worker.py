"""A client in a process of its own that puts and gets until told to stop, and tells everything it saw.

`python client_worker.py '<JSON options>'`; prints a line of JSON for each acked batch, and a report at the
end (stdin closed).
Content follows from the key (support.pages), so each byte that comes back is checked.
"""

from __future__ import annotations

import json
import random
import select
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from kvstore_client import Client

from support import pages


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
    )
    namespace = client.namespace(options["namespace"])

    def call(verb: str, *arguments: Any) -> Any:
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
            if elapsed_ms > options["deadline_ms"] + 100:
                report["late"].append(f"{verb}: {elapsed_ms:.0f} ms at {time.time():.3f}")

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
                pending = [
                    key for key in pending if key not in set(stored)
                ]  # tried again: puts are idempotent
                acked += stored
                if stored:
                    print(json.dumps({"event": "acked", "keys": stored}), flush=True)
        if acked:
            wanted = rng.sample(acked, min(options["batch"], len(acked)))
            for key, value in zip(wanted, call("batch_get", wanted) or [], strict=False):
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
