"""What is said of a run: one line, or what one needs to understand one that failed."""

from __future__ import annotations

from simulation.runner import Result
from simulation.scenarios import EVERYTHING

LOG_LINES = 60


def report(result: Result) -> str:
    """Of a run that failed: what is broken, how it was played, how it ended, and how to see it again."""
    return "\n".join(
        [
            f"seed {result.seed} violates {result.violation}",
            f"played with {result.options}",
            "faults:",
            *(f"  {fault}" for fault in result.faults),
            f"the last of {result.events} events:",
            *result.log.last(LOG_LINES),
            f"replay it: {replay_command(result)}",
        ]
    )


def summary(result: Result) -> str:
    verdict = "holds" if result.violation is None else f"violates {result.violation}"
    return (
        f"seed {result.seed} {verdict}: {result.virtual_s:.1f} s of virtual time, {result.events} events, {result.acks} pages "
        f"stored, {result.hits} found, {result.pages_checked} checked, digest {result.digest[:16]}"
    )


def replay_command(result: Result) -> str:
    """One line for a shell."""
    command = f"make simulate SEED={result.seed}"
    if result.scenario.name != EVERYTHING.name:
        command += f" SCENARIO={result.scenario.name}"
    if result.scenario.drop:
        command += f" ARGS='--drop {','.join(map(str, sorted(result.scenario.drop)))}'"
    return command
