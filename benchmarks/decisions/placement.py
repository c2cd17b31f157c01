"""0014, home first, then two choices: how even the segments fill, and what a newcomer gets."""

from __future__ import annotations

import random
from collections.abc import Callable

from benchmarks.decisions.base import Table
from kvstore.master.state.placement import Candidate, HostFirstTwoChoices

SEGMENTS = 10
CAPACITY_BYTES = 64 << 30
RUN_BYTES = 8 << 20
RUNS = 40_000  # about half of what the segments hold
REPORT_RUNS = 500  # puts between two heartbeats
SEED = 20261130

Choose = Callable[[list[Candidate], random.Random], Candidate]


def measure(repetitions: int) -> Table:
    """Runs of 8 MiB from one writer without a segment on its host, over nine segments in use and an empty newcomer. Figures of
    segments are those that they last reported."""
    del repetitions  # a simulation with a seed
    rows = []
    for name, choose in (
        ("one at random", _at_random),
        ("the emptiest", _emptiest),
        ("the better of two", _two_choices()),
    ):
        rng = random.Random(SEED)
        segments = [
            Candidate(i, CAPACITY_BYTES, rng.randrange(CAPACITY_BYTES // 4), -1e9)
            for i in range(SEGMENTS - 1)
        ]
        segments.append(Candidate(SEGMENTS - 1, CAPACITY_BYTES, 0, 0.0))
        real = [segment.used_bytes for segment in segments]
        got = [0] * SEGMENTS
        burst = 0
        for start in range(0, RUNS, REPORT_RUNS):
            here = [0] * SEGMENTS
            for _ in range(REPORT_RUNS):
                chosen = choose(segments, rng).index
                real[chosen] += RUN_BYTES
                got[chosen] += 1
                here[chosen] += 1
            burst = max(burst, max(here))
            for segment, used_bytes in zip(segments, real, strict=True):
                segment.used_bytes, segment.placed_bytes = used_bytes, 0
            del start
        spread = max(real) / (sum(real) / SEGMENTS)
        fair = RUNS / SEGMENTS
        rows.append([name, f"{spread:.2f}", f"{got[-1] / fair:.2f}", f"{burst * SEGMENTS / REPORT_RUNS:.1f}"])
    return Table(
        f"{RUNS} runs of {RUN_BYTES >> 20} MiB over {SEGMENTS} segments, figures {REPORT_RUNS} runs old (seed {SEED})",
        ["choice", "fullest / mean", "newcomer's share / fair", "largest share between reports / fair"],
        rows,
    )


def _at_random(segments: list[Candidate], rng: random.Random) -> Candidate:
    return rng.choice(segments)


def _emptiest(segments: list[Candidate], rng: random.Random) -> Candidate:
    del rng
    return min(segments, key=lambda segment: segment.used_bytes)


def _two_choices() -> Choose:
    policy = HostFirstTwoChoices(random.Random(SEED), slow_start_s=0)
    return lambda segments, rng: policy.choose(0.0, segments, -1, RUN_BYTES, 1)[0]
