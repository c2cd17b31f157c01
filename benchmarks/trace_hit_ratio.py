"""Replays traces of prompts on a segment's real store and prints what each eviction policy hits.

A trace is JSON lines with `hash_ids`, the chain of page ids of one request. Capacity is a share of the trace's unique
pages. Each cell: block hits (leading-prefix hits); a page is a prefix hit only if all before it are there, which is
what an engine feels. The rows with hints say of each page of a request whether it will be used again: retained if so,
else demoted; for so many of the requests the whole chain is told the opposite.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.cases.base import table

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "replay"
POLICIES = ("lru", "lrfu", "2q", "interval", "adaptive")
DEMOTED, NORMAL, _WANTED, RETAINED = range(4)  # Keep of native/segment/eviction/eviction_policy.hpp


def build(program: str) -> Path:
    """A native program of native/tests/replay, compiled as a release is."""
    configure = ["cmake", "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja"]
    options = ["-DKVSTORE_BUILD_PYTHON=OFF", "-DKVSTORE_BUILD_TESTS=ON"]
    subprocess.run([*configure, *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        ["cmake", "--build", str(BUILD), "--target", program], check=True, stdout=subprocess.DEVNULL
    )
    return BUILD / "native" / "tests" / program


def read_trace(path: Path) -> list[list[int]]:
    """The requests of a trace, each the chain of its page ids."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["hash_ids"] for line in lines if line.strip()]


def hints(requests: Sequence[Sequence[int]], right: float, seed: int) -> list[list[int]]:
    """For each page of each request: is it used again? Told the other way round for the rest of the requests."""
    dice = random.Random(seed)
    later: set[int] = set()
    out: list[list[int]] = []
    for pages in reversed(requests):
        out.append([RETAINED if page in later else DEMOTED for page in pages])
        later.update(pages)
    out.reverse()
    return [keep if dice.random() < right else [RETAINED + DEMOTED - one for one in keep] for keep in out]


def write_requests(path: Path, requests: Sequence[Sequence[int]], keeps: Iterable[Sequence[int]]) -> None:
    """What the native program reads: u32 count, the pages, a byte of Keep for each."""
    numbers: dict[int, int] = {}
    with path.open("wb") as file:
        for pages, keep in zip(requests, keeps, strict=True):
            ids = array("I", (numbers.setdefault(page, len(numbers)) for page in pages))
            file.write(array("I", [len(ids)]).tobytes() + ids.tobytes() + bytes(keep))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace_hit_ratio", description=__doc__)
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE", help="JSON lines with hash_ids")
    parser.add_argument(
        "--percent", nargs="+", type=float, default=[1, 3, 10, 30], help="capacities (1 3 10 30)"
    )
    parser.add_argument(
        "--right", type=float, default=0.8, help="share of requests whose hints are right (0.8)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the hints that are wrong (1)")
    parser.add_argument(
        "--disk", type=float, default=0, help="rows with a disk tier of so many times the memory (0: none)"
    )
    parser.add_argument("--costs", action="store_true", help="print what a call of each policy costs")
    arguments = parser.parse_args()
    if arguments.costs:
        print_costs()
    if not arguments.traces:
        return
    replay = build("trace_replay")
    with tempfile.TemporaryDirectory(prefix="kvstore-replay-") as directory:
        for trace in arguments.traces:
            print_trace(replay, trace, Path(directory), arguments)


def print_trace(replay: Path, trace: Path, directory: Path, arguments: argparse.Namespace) -> None:
    """Plays one trace in all ways and prints its table."""
    requests = read_trace(trace)
    unique = len({page for pages in requests for page in pages})
    plain, hinted, adverse = (directory / name for name in ("plain", "hinted", "adverse"))
    write_requests(plain, requests, ([NORMAL] * len(pages) for pages in requests))
    write_requests(hinted, requests, hints(requests, arguments.right, arguments.seed))
    write_requests(adverse, requests, hints(requests, 0.0, arguments.seed))
    rows = [(policy, "store", policy, plain) for policy in POLICIES]
    right = f"{arguments.right * 100:g} %"
    rows += [
        (f"{policy}, hints right for {right}", "store", policy, hinted) for policy in ("lru", "adaptive")
    ]
    rows += [(f"{policy}, adversarial hints", "store", policy, adverse) for policy in ("lru", "adaptive")]
    rows.append(("clairvoyant", "clairvoyant", "-", plain))
    disk_admits = {}
    if arguments.disk:
        for uses in (2, 1):
            name = f"adaptive, and {arguments.disk:g} x on disk of pages seen {uses} x"
            disk_admits[name] = uses
            rows.append((name, "store", "adaptive", plain))

    def cell(name: str, how: str, policy: str, requests_file: Path, percent: float) -> tuple[str, str]:
        capacity = max(1, int(unique * percent / 100))
        command = [str(replay), str(requests_file), str(capacity), how, policy]
        if name in disk_admits:
            disk_pages = int(capacity * arguments.disk)
            command += [str(directory / f"disk-{name}-{percent}"), str(disk_pages), str(disk_admits[name])]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        pages, blocks, prefix = map(int, out.split())
        holes = 100 * (blocks - prefix) / max(1, blocks)
        return f"{blocks / pages:.3f} ({prefix / pages:.3f})", f"{holes:.1f}"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cells = {
            (name, percent): pool.submit(cell, name, how, policy, file, percent)
            for name, how, policy, file in rows
            for percent in arguments.percent
        }
        body = [
            [
                name,
                *(cells[name, percent].result()[0] for percent in arguments.percent),
                " / ".join(cells[name, percent].result()[1] for percent in arguments.percent),
            ]
            for name, *_ in rows
        ]
    head = ["policy", *(f"{percent:g} %" for percent in arguments.percent), "holes, % of block hits"]
    references = sum(map(len, requests))
    print(
        f"### {trace.name}: {len(requests):,} requests, {references:,} pages, {unique:,} of them different\n"
    )
    print(table(head, body), "\n", flush=True)


def print_costs() -> None:
    """Nanoseconds a call, with few objects and with many."""
    program = build("eviction_cost")
    cells: dict[str, list[str]] = {policy: [] for policy in POLICIES}
    for objects in (10_000, 5_000_000):
        out = subprocess.run([program, str(objects)], check=True, stdout=subprocess.PIPE, text=True).stdout
        for policy, *nanoseconds in map(str.split, out.splitlines()):
            cells[policy] += nanoseconds
    head = ["ns a call", "insert and evict, 10 k objects", "use, 10 k", "insert and evict, 5 M", "use, 5 M"]
    print(table(head, [[policy, *cells[policy]] for policy in POLICIES]), "\n", flush=True)


if __name__ == "__main__":
    main()
