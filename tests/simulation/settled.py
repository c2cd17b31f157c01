"""What a cluster comes back to when nothing disturbs it: one leader, everybody attached, the same directory everywhere, all queues empty."""

from __future__ import annotations

from kvstore.segment.journal_pump import PumpState
from kvstore_client._native import DirectoryIndex
from kvstore_client.protocol.journal import decode_groups
from simulation.cluster import Cluster
from simulation.master_node import MasterNode
from simulation.oracle import FINGERPRINT
from simulation.segment_node import SegmentNode


def unsettled(cluster: Cluster) -> str | None:
    """The first thing that is not as it should be; None: all is."""
    leader = cluster.leader()
    if leader is None:
        return "there is no leader"
    if cluster.oracle.clears_pending:
        return f"{cluster.oracle.clears_pending} clears have not reached everyone"
    for check in (_masters, _segments, _leader, _directories):
        if (wrong := check(cluster, leader)) is not None:
            return wrong
    return None


def _masters(cluster: Cluster, leader: MasterNode) -> str | None:
    for node in cluster.masters.values():
        if node is leader:
            continue
        if node.directory is not None:
            return f"{node.host} believes that it leads"
        applied = node.applied_revision
        if applied is None or applied < cluster.oracle.last_commit_revision:
            return f"{node.host} is behind: {applied} of {cluster.oracle.last_commit_revision}"
        if node.is_cut_off:
            return f"{node.host} does not answer: it was cut off from the store"
        if node.streams:
            return f"{node.host} stands by and has {node.streams} streams"
    return None


def _segments(cluster: Cluster, leader: MasterNode) -> str | None:
    for node in cluster.living_segments():
        if not node.attached or node.master != leader.host:
            return f"{node.host} is not attached to the leader"
        if node.pump.state is not PumpState.STREAMING or node.pump.window_full:
            return f"{node.host} is in state {node.pump.state.name}"
        pool = node.pool
        if pool.acked_seq != pool.last_seq:
            return f"{node.host} has entries up to {pool.last_seq}, acknowledged up to {pool.acked_seq}"
        if pool.waiting:
            return f"{pool.waiting} puts wait at {node.host}"
    return None


def _leader(cluster: Cluster, leader: MasterNode) -> str | None:
    directory = leader.directory
    assert directory is not None
    if cluster.etcd.alarm:
        return "etcd takes nothing any more: it is full"
    indexes, known = directory.state.segments.indexes, len(directory.state.segments)
    if (used := indexes._next - len(indexes._free)) != known:
        return f"{used} segment indexes are in use, and {known} segments known"
    if directory.committer.backlog_bytes:
        return f"{directory.committer.backlog_bytes} bytes wait for a commit"
    if waiters := len(directory._answers._waiters):
        return f"{waiters} requests wait for an answer"
    sessions, streams = len(directory._sessions), leader.streams
    living = len(cluster.living_segments())
    if not sessions == streams == living:
        return f"the leader has {sessions} sessions, {streams} streams, and {living} segments live"
    for segment in directory.state.segments:
        if segment.session is None:
            continue
        who = segment.record.endpoint.host
        if not segment.serving or not segment.registered or not segment.recorded:
            return (
                f"{who} is {segment.state.name}, registered {segment.registered}, recorded {segment.recorded}"
            )
        if segment.accepted_seq != segment.durable_seq:
            return f"of {who} entry {segment.accepted_seq} is accepted and {segment.durable_seq} durable"
        for name in (
            "inventory",
            "compaction",
            "awaiting_inventory",
            "damaged",
            "held_back",
            "drain_request",
        ):
            if getattr(segment, name) not in (None, False):
                return f"{who}: {name} is {getattr(segment, name)}"
        if segment.registrations_pending:
            return f"{segment.registrations_pending} registrations of {who} are on their way"
    return None


def _directories(cluster: Cluster, leader: MasterNode) -> str | None:
    """Both ways: every page that a segment holds is in every directory, and nothing else is."""
    for node in cluster.masters.values():
        index = node.roles.backend.index
        total = 0
        for segment in cluster.living_segments():
            number = _index_of(node, segment)
            if number is None:
                return f"{node.host} does not know {segment.host}"
            there = _content(index, number)
            total += len(there)
            held = {fp: page.length for (ns, fp), page in segment.pool.pages.items()}
            current = {fp for ns, fp in segment.pool.pages if ns not in segment.pool.retired}
            who = node.host if node is leader else f"the standby {node.host}"
            if missing := sorted(current - there.keys()):
                return f"{who} lacks {len(missing)} pages of {segment.host}, {missing[0].hex()} for one"
            if ghosts := sorted(there.keys() - held.keys()):
                return f"{who} has {len(ghosts)} pages that {segment.host} has not, {ghosts[0].hex()} for one"
            if any(there[fp] != held[fp] for fp in there):
                return f"{who} has another length of a page of {segment.host}"
        if total != index.entry_count:
            return f"{node.host} has {index.entry_count - total} entries of segments that are no more"
        if (blind := _unserved(cluster, node)) is not None:
            return blind
    return None


def _unserved(cluster: Cluster, node: MasterNode) -> str | None:
    for segment in cluster.living_segments():
        by_namespace: dict[bytes, list[bytes]] = {}
        for (ns, fingerprint), _ in segment.pool.acked_pages():
            by_namespace.setdefault(ns, []).append(fingerprint)
        for ns, fingerprints in by_namespace.items():
            if node.answers_for(ns) and None in node.on_lookup(ns, fingerprints):
                return f"{node.host} does not find a page of {segment.host}"
    return None


def _index_of(node: MasterNode, segment: SegmentNode) -> int | None:
    for record in node.roles.backend.segment_map():
        if record.segment_id == segment.segment_id and record.pool_id == segment.pool.pool_id:
            return record.index
    return None


def _content(index: DirectoryIndex, number: int) -> dict[bytes, int]:
    there = {}
    for chunk in index.snapshot(number, 1000):
        for group in decode_groups(chunk):
            for i, length in enumerate(group.lengths):
                there[group.fingerprints[FINGERPRINT * i : FINGERPRINT * (i + 1)]] = length
    return there
