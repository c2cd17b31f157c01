"""Measures what the decisions in docs/decisions/ rest on. Prints Markdown.

Runs in a network namespace of its own where it may (as root), so that nothing it starts is reachable from outside.
"""

from __future__ import annotations

import argparse
from types import ModuleType

from benchmarks.cases.base import table
from benchmarks.decisions import (
    commit_path,
    etcd_space,
    full_pool,
    hostile,
    intents,
    languages,
    link,
    metadata,
    pieces,
    pins,
    placement,
    pool_memory,
    present,
    read_your_write,
    replicas,
    segment_map,
    segment_store,
    shards,
    side_pools,
    warm_restart,
    weights,
)
from benchmarks.namespace import enter_private_network

MEASUREMENTS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        shards,
        pieces,
        segment_map,
        present,
        read_your_write,
        replicas,
        side_pools,
        languages,
        metadata,
        commit_path,
        etcd_space,
        placement,
        full_pool,
        segment_store,
        pins,
        intents,
        link,
        pool_memory,
        warm_restart,
        hostile,
        weights,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASUREMENTS)}; default: all"
    )
    parser.add_argument("--repetitions", type=int, default=7, help="counted repetitions (default 7)")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(MEASUREMENTS):
        parser.error(
            f"no such measurement: {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}"
        )
    enter_private_network()
    for name in arguments.names or MEASUREMENTS:
        result = MEASUREMENTS[name].measure(arguments.repetitions)
        print(f"## {name}: {result.question}\n\n{table(result.head, result.rows)}\n", flush=True)


if __name__ == "__main__":
    main()
