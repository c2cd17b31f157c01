"""Plays the cluster in virtual time. `make simulate SEEDS=500` plays seeds, `make simulate SEED=n` one, with its event log."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace

from simulation.reports import report, summary
from simulation.runner import run
from simulation.scenarios import EVERYTHING, SCENARIOS, Scenario
from simulation.shrink import shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone, with its whole event log")
    parser.add_argument("--scenario", choices=SCENARIOS, default=EVERYTHING.name)
    parser.add_argument("--drop", default="", help="numbers of faults to leave out, with commas")
    parser.add_argument(
        "--shrink", action="store_true", help="leave out the faults that a failing --seed does not need"
    )
    options = parser.parse_args()
    drop = frozenset(int(number) for number in options.drop.split(",") if number)
    scenario = replace(SCENARIOS[options.scenario], drop=drop)
    if options.seed is not None:
        return _play_one(options.seed, scenario, shrinks=options.shrink)
    return _play_many(range(options.first, options.first + options.seeds), scenario)


def _play_one(seed: int, scenario: Scenario, *, shrinks: bool) -> int:
    result = run(seed, scenario)
    if result.violation is not None and shrinks:
        result = shrink(result)
        print(report(result))
    else:
        print("\n".join(result.log.all()))
    print(summary(result))
    return 0 if result.violation is None else 1


def _play_many(seeds: range, scenario: Scenario) -> int:
    began = time.process_time()
    failed = []
    happened: Counter[str] = Counter()
    for seed in seeds:
        result = run(seed, scenario)
        happened += result.log.events
        if result.violation is not None:
            failed.append(seed)
            print(report(result), flush=True)
    print("what happened: " + ", ".join(f"{name} {count}" for name, count in sorted(happened.items())))
    print(
        f"{len(seeds)} seeds of {scenario.name}, {time.process_time() - began:.1f} s of CPU; failed: {failed or 'none'}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
