"""The cluster, played in virtual time: what must hold holds on every seed, a seed is a run, and old mistakes are noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from simulation.made_up_mistakes import MADE_UP_MISTAKES
from simulation.mistakes import Mistake
from simulation.old_mistakes import OLD_MISTAKES
from simulation.reports import report
from simulation.runner import run
from simulation.scenarios import EVERYTHING, SCENARIOS, Scenario

SEEDS = 500
SEEDS_AN_ITEM = 20
SEEDS_OF_A_GAME = 20
TESTS = Path(__file__).resolve().parents[1]

# A minute of a core at most; a machine that others load takes longer.
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("first", range(1, SEEDS, SEEDS_AN_ITEM))
def test_whatever_fails_what_must_hold_holds(first: int) -> None:
    for seed in range(first, first + SEEDS_AN_ITEM):
        result = run(seed, EVERYTHING)
        assert result.violation is None, report(result)


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, id=each.name) for each in SCENARIOS.values() if each is not EVERYTHING],
)
def test_it_holds_too_where_one_trouble_comes_often(scenario: Scenario) -> None:
    for seed in range(1, 1 + SEEDS_OF_A_GAME):
        result = run(seed, scenario)
        assert result.violation is None, report(result)


@pytest.mark.parametrize(
    "mistake", [*OLD_MISTAKES, *MADE_UP_MISTAKES], ids=lambda mistake: mistake.name.replace(" ", "-")
)
def test_a_mistake_is_found(mistake: Mistake) -> None:
    found = []
    for seed in range(1, 1 + mistake.seeds_max):
        with mistake.made():
            result = run(seed, mistake.scenario)
        if result.violation is not None:
            found.append(result.violation.rule)
            if result.violation.rule in mistake.rules:
                return
    pytest.fail(f"{mistake.seeds_max} seeds have found nothing but {found}")


def test_the_same_seed_is_the_same_run() -> None:
    first, second = run(11, EVERYTHING), run(11, EVERYTHING)
    assert first.events > 200
    assert first.log.all() == second.log.all()
    assert first.digest == second.digest
    assert run(12, EVERYTHING).digest != first.digest


def test_a_seed_is_the_same_run_in_a_process_with_another_hash_seed() -> None:
    command = (
        "from simulation.runner import run; from simulation.scenarios import EVERYTHING; "
        "print(*(run(seed, EVERYTHING).digest for seed in (3, 4, 5)))"
    )
    here = [run(seed, EVERYTHING).digest for seed in (3, 4, 5)]
    for hash_seed in ("1", "4711"):
        env = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", command], env=env, capture_output=True, text=True, timeout=300, check=True
        )
        assert done.stdout.split() == here


def test_the_seeds_reach_what_they_are_for() -> None:
    """A simulation in which nothing happens would hold too."""
    happened: Counter[str] = Counter()
    acks = hits = 0
    for seed in range(1, 1 + 2 * SEEDS_AN_ITEM):
        result = run(seed, EVERYTHING)
        happened += result.log.events
        acks, hits = acks + result.acks, hits + result.hits
    assert acks > 100 * SEEDS_AN_ITEM
    assert hits > 50 * SEEDS_AN_ITEM
    for event in (
        "commits_stalled",
        "commits_resumed",
        "commit_failed",
        "entries_refused",
        "inventory_stored",
        "killed_in_compaction",
        "log_compacted",
        "segment_draining",
        "segment_gone",
        "segment_id_taken",
        "segment_stream_lost",
        "segment_superseded",
        "segment_suspect",
    ):
        assert happened[event], f"{event} never happened: {dict(happened)}"
