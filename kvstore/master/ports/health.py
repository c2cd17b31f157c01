"""What is wrong with a store, in words for whoever is woken by it. Policy only: it is given facts and reads no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kvstore.common.reachability import address_doubt
from kvstore.master.committer import BACKLOG_BYTES_MAX
from kvstore.master.metadata.store import SpaceLevel
from kvstore.master.state.directory_state import DirectoryState
from kvstore.master.state.segment_table import Segment
from kvstore.master.store_watch import StoreView
from kvstore_client.address import Address
from kvstore_client.protocol import SegmentState

NAMED_MAX = 5
# A newcomer with another's id tries again every few seconds.
CHALLENGE_TOLD_S = 60.0


def leader_problems(
    now: float,
    segments: Iterable[Segment],
    store: StoreView,
    backlog_bytes: int,
    data_paths_shut: Collection[int] = (),
) -> list[str]:
    """Empty: well. A pool that is full is well (it evicts), and so is a segment that an operator drains."""
    known = list(segments)
    problems = [*_store_problems(store, backlog_bytes), *_segment_problems(now, known)]
    if shut := [s for s in known if s.index in data_paths_shut]:
        problems.append(
            f"{_count(shut)} alive and without an answer on the data port, new pages go elsewhere: "
            + _named(map(_name, shut))
        )
    return problems


def limit_problems(state: DirectoryState) -> list[str]:
    """Limits of the cluster that are reached now: whoever comes next is refused."""
    problems = []
    if state.namespaces.full:
        problems.append(
            f"no namespace can be opened, there are {state.namespaces.count_max}: forget those that nobody uses any more "
            "(kvstore admin forget), or raise namespaces_max"
        )
    if len(state.segments) >= (segments_max := state.membership.limits.segments_max):
        problems.append(
            f"no segment can join, there are {segments_max}, suspect and gone ones too: raise segments_max"
        )
    return problems


def standby_problems(ready: bool, why: str) -> list[str]:
    """As /readyz answers. That there is no leader shows in `leader_address`."""
    return [] if ready else [f"not ready: {why}"]


def _store_problems(store: StoreView, backlog_bytes: int) -> list[str]:
    problems = []
    if store.commit_error:
        problems.append(f"the last commit to the metadata store failed: {store.commit_error}")
    if store.read_error:
        problems.append(f"the metadata store does not answer: {store.read_error}")
    if store.level is SpaceLevel.FULL:
        problems.append(f"the metadata store is full, no put becomes durable: {store.text}")
    elif store.level is SpaceLevel.TIGHT:
        problems.append(f"the metadata store gets full: {store.text}")
    if backlog_bytes > BACKLOG_BYTES_MAX:
        problems.append(f"commits can't keep up: {backlog_bytes} bytes of journal wait")
    return problems


def _segment_problems(now: float, segments: Sequence[Segment]) -> list[str]:
    problems = []
    suspect = [s for s in segments if s.state is SegmentState.SUSPECT]
    if suspect:
        problems.append(
            f"{_count(suspect)} suspect and not served: "
            + _named(f"{_name(s)} silent for {max(0.0, now - s.heard_at):.0f} s" for s in suspect)
        )
    doubled = [s for s in segments if now - s.challenged_at < CHALLENGE_TOLD_S]
    if doubled:
        problems.append(
            "a second segment comes with the id of another and is refused, its data directory was copied: "
            + _named(f"{_name(s)} has it, {s.challenger} wants it" for s in doubled)
        )
    waiting = [s for s in segments if s.serving and not s.registered]
    if waiting:
        problems.append(
            f"{_count(waiting)} served from the records and not attached yet: {_named(map(_name, waiting))}"
        )
    doubts = [(s, address_doubt(s.record.endpoint.host, s.attached_from)) for s in segments if s.serving]
    if misled := [(s, doubt) for s, doubt in doubts if doubt]:
        problems.append(
            f"{_count([s for s, _ in misled])} out of clients' reach: "
            + _named(f"{_name(s)}: {doubt}" for s, doubt in misled)
        )
    bad = [s for s in segments if s.serving and s.quarantined_slots]
    if bad:
        problems.append(
            f"{_count(bad)} on memory that goes bad: "
            + _named(f"{_name(s)} {s.quarantined_slots} quarantined" for s in bad)
        )
    if not any(s.placeable for s in segments):
        serving = any(s.serving for s in segments)
        why = "those that serve are being drained, or not attached yet" if serving else "none serves"
        problems.append(f"no segment takes new pages: {why}")
    return problems


def _count(segments: Sequence[Segment]) -> str:
    return "1 segment is" if len(segments) == 1 else f"{len(segments)} segments are"


def _name(segment: Segment) -> str:
    return f"{segment.index} ({Address(segment.record.endpoint.host, segment.record.endpoint.tcp_port)})"


def _named(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - NAMED_MAX} more" if len(every) > NAMED_MAX else ""
    return ", ".join(every[:NAMED_MAX]) + more
