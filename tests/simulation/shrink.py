"""Which of a failing run's faults it takes: the others are left out, one after the other."""

from __future__ import annotations

from dataclasses import replace

from simulation.runner import Result, run


def shrink(result: Result) -> Result:
    """The same seed with as few faults as still break the same rule."""
    assert result.violation is not None
    best = result
    numbers = range(len(result.faults) + len(result.scenario.drop))
    for number in numbers:
        if number in best.scenario.drop:
            continue
        tried = run(result.seed, replace(best.scenario, drop=best.scenario.drop | {number}))
        if tried.violation is not None and tried.violation.rule == result.violation.rule:
            best = tried
    return best
