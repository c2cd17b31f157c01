"""Measures the SGLang adapter with a real SGLang on CPU. Prints Markdown.

    .venv-sglang/bin/python -m benchmarks.adapter [overhead] [transfers]

Runs in a network namespace of its own where it may (as root). `make sglang-venv` sets the environment up; Mooncake takes part where
`make bench` has installed it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "sglang"), str(ROOT / "tests" / "sglang" / "shims")]

import cpu_shims  # noqa: E402

cpu_shims.install()  # before anything imports sglang

from benchmarks.adapter import overhead, transfers  # noqa: E402
from benchmarks.cases.base import table  # noqa: E402
from benchmarks.decisions.base import running_store  # noqa: E402
from benchmarks.namespace import enter_private_network  # noqa: E402

POOL_BYTES = 2 << 30
MEASUREMENTS = ("overhead", "transfers")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapter", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASUREMENTS)}; default: all"
    )
    parser.add_argument(
        "--repetitions", type=int, default=51, help="calls and prompts of each kind (default 51)"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(MEASUREMENTS):
        parser.error(
            f"no such measurement: {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}"
        )
    enter_private_network()
    names = arguments.names or MEASUREMENTS
    if "overhead" in names:
        with running_store(POOL_BYTES) as masters:
            rows = overhead.measure(masters, arguments.repetitions)
        print(
            f"## overhead: what a batch of {overhead.PAGES} pages costs\n\n{table(overhead.HEAD, rows)}\n",
            flush=True,
        )
    if "transfers" in names:
        rows = transfers.measure(arguments.repetitions)
        question = f"a prompt of {transfers.PAGES} pages through SGLang's controller"
        print(f"## transfers: {question}\n\n{table(transfers.HEAD, rows)}\n", flush=True)


if __name__ == "__main__":
    main()
