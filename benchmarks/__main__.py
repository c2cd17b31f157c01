"""Compares kvstore with Mooncake Store and with what the machine itself can do. Prints Markdown.

Runs in a network namespace of its own where it may (as root), so that nothing it starts is reachable from outside.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.cases import CASES, Setting
from benchmarks.measure import measure
from benchmarks.namespace import enter_private_network
from benchmarks.peers import PEERS
from benchmarks.report import render


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help="default: all")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    parser.add_argument(
        "--sizes-kib",
        nargs="+",
        type=int,
        default=[16, 64, 1024],
        metavar="KIB",
        help="page sizes of the case `transfers`; default 16 64 1024",
    )
    parser.add_argument("--batch", type=int, default=128, help="pages a call (default 128)")
    parser.add_argument("--repetitions", type=int, default=7, help="counted repetitions (default 7)")
    parser.add_argument(
        "--load-seconds", type=float, default=3.0, help="how long loads of several clients last (default 3)"
    )
    parser.add_argument(
        "--pool-mib", type=int, default=2560, help="memory of each peer's store (default 2560)"
    )
    parser.add_argument("--out", type=Path, help="write the report to this file too")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    arguments = parser.parse_args()
    needed_mib = (arguments.repetitions + 1) * arguments.batch * max(arguments.sizes_kib) * 2 // 1024
    if needed_mib > 0.9 * arguments.pool_mib:
        parser.error(
            f"--pool-mib {arguments.pool_mib}: {needed_mib} MiB are written at a time; allow at least {needed_mib * 10 // 9 + 1}"
        )
    return arguments


def main() -> int:
    arguments = parse_arguments()
    private_network = enter_private_network()
    setting = Setting(
        [kib << 10 for kib in arguments.sizes_kib],
        arguments.batch,
        arguments.repetitions,
        arguments.load_seconds,
        progress=lambda text: print(text, file=sys.stderr, flush=True),
    )
    results = measure(arguments.peers, arguments.cases, setting, arguments.pool_mib << 20)
    report, good = render(results, setting, private_network=private_network)
    print(report)
    if arguments.out:
        arguments.out.write_text(report + "\n")
    return 0 if good or (not arguments.check and results.wrong_pages == 0) else 1


if __name__ == "__main__":
    sys.exit(main())
