"""Which segments' data ports fail, while their heartbeats go on: a state machine without IO, told by clients and by probes.

    well    --a client avoids it-->  asked   (to be probed, at most every PROBE_S)
    asked   --it answers-->          well    (the path of that client alone is broken: the client goes around it)
    asked   --no answer-->           shut    (takes no new pages, and is probed every PROBE_S)
    shut    --it answers, or nobody has avoided it for SHUT_S-->  well

A client can't shut a segment by its word alone. Where the master has no way to a segment that clients do reach, what one of
them says is believed for SHUT_S.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

PROBE_S = 1.0
SHUT_S = 30.0
# Of one request: what a client may name is what it has found to fail.
AVOIDED_MAX = 64


@dataclass(slots=True)
class _Path:
    avoided_at: float
    probe_at: float  # not before
    probing: bool = False
    shut: bool = False


class DataPaths:
    """By index of the segment. What is well is not kept."""

    def __init__(self) -> None:
        self._paths: dict[int, _Path] = {}
        self.shut: frozenset[int] = frozenset()

    def avoided(self, now: float, index: int) -> bool:
        """A client finds that this segment does not serve it. Whether a probe of it is due."""
        path = self._paths.setdefault(index, _Path(now, now))
        path.avoided_at = now
        return not path.probing and now >= path.probe_at

    def due(self, now: float, present: Collection[int]) -> list[int]:
        """The segments to probe now, which counts as begun. `present`: those that are in the map; others are forgotten."""
        for index in [i for i in self._paths if i not in present]:
            self._forget(index)
        chosen = [i for i, path in self._paths.items() if not path.probing and now >= path.probe_at]
        for index in chosen:
            self._paths[index].probing = True
        return chosen

    def abandon_probes(self) -> None:
        """Those on their way will not end: they are due again."""
        for path in self._paths.values():
            path.probing = False

    def next_probe_at(self) -> float | None:
        """None: nothing is to be probed."""
        return min((path.probe_at for path in self._paths.values() if not path.probing), default=None)

    def probed(self, now: float, index: int, answers: bool) -> bool:
        """A probe has ended. Whether the segment is shut now and was not before, or the other way round."""
        path = self._paths.get(index)
        if path is None:
            return False
        was_shut = path.shut
        path.probing, path.probe_at = False, now + PROBE_S
        path.shut = not answers and now - path.avoided_at < SHUT_S
        if not path.shut and now - path.avoided_at >= PROBE_S:
            del self._paths[index]  # else it stays a while, so that clients can't have it probed all the time
        self._collect()
        return path.shut != was_shut

    def _forget(self, index: int) -> None:
        del self._paths[index]
        self._collect()

    def _collect(self) -> None:
        self.shut = frozenset(index for index, path in self._paths.items() if path.shut)
