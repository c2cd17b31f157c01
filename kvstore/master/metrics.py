"""Metrics of the master, in a registry of their own. Names and meanings are the operator's interface."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvstore.master.state.directory_state import DirectoryState
from kvstore.master.state.replay import Replay
from kvstore_client._native import DirectoryIndex
from kvstore_client.protocol import SegmentState

PREFIX = "kvstore_master_"
_COMMIT_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class MasterMetrics:
    """One line a metric; `watch` adds those that are read off the state."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, meaning, labels, registry=self.registry)

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(PREFIX + name, meaning, registry=self.registry)

        self.requests = counter(
            "requests", "Directory requests answered, by operation and status.", "op", "status"
        )
        self.request_keys = counter("request_keys", "Entries in directory requests, by operation.", "op")
        self.bad_frames = counter("bad_frames", "Connections closed for a malformed frame header.")
        self.version_refusals = counter(
            "version_refusals", "Peers refused because no protocol version is common, by port.", "port"
        )
        self.unauthorized = counter("unauthorized", "Peers refused for a wrong token, by port.", "port")
        self.connections = gauge("connections", "Open directory connections.")
        self.connections_max = gauge(
            "connections_max",
            "Most directory connections: the setting, or what the limit of open files allows.",
        )
        self.refused_connections = counter(
            "refused_connections",
            "Directory connections refused because as many as connections_max were open.",
        )
        self.events = counter(
            "events",
            "Events of the state machine worth knowing: journal_gap, journal_malformed, "
            "entries_refused, segment_stream_lost, segment_suspect, segment_gone, commits_stalled, "
            "commit_failed, record_corrupt, log_compacted, inventory_stored, ...",
            "event",
        )
        self.corrupt_records = counter(
            "corrupt_records", "Stored records lost to corruption, by kind.", "kind"
        )
        self.commit_seconds = Histogram(
            PREFIX + "commit_seconds",
            "Time of one group commit into the metadata store.",
            buckets=_COMMIT_BUCKETS_S,
            registry=self.registry,
        )
        self.commit_submissions = counter(
            "commit_submissions", "Submissions made durable; divided by commits it is the size of a group."
        )
        self.journal_entries = counter("journal_entries", "Journal entries received.")
        self.commit_stalled = gauge(
            "commit_stalled_seconds",
            "How long work has waited for the metadata store without any of it being done.",
        )
        self.backlog_bytes = gauge("commit_backlog_bytes", "Bytes waiting for a commit.")
        self.quotas = gauge("quotas", "Quotas that namespaces and tags are kept to.")
        self.quotas_exceeded = gauge("quotas_exceeded", "Quotas that more is there of than they allow, now.")
        self.quota_refused = counter(
            "quota_refused",
            "PLACE requests that got no segment because their quota is 0, or far exceeded.",
        )
        self.data_paths_shut = gauge(
            "data_paths_shut",
            "Segments that get no new pages because their data port answers neither clients nor this master.",
        )
        self.copies_beside = counter(
            "copies_beside",
            "Copies that went to a host with another copy of the same page, for no other host takes any.",
        )
        self.copies_short = counter(
            "copies_short", "Copies that writers asked for and no segment was there to take."
        )
        self.copies_trimmed = counter(
            "copies_trimmed", "Copies that nobody had asked for and that segments have dropped on order."
        )
        self.copies_to_trim = gauge(
            "copies_to_trim", "Pages that may have too many copies, and wait for a look."
        )
        self.metadata_bytes = gauge("metadata_bytes", "Size of the metadata store.")
        self.metadata_space = gauge(
            "metadata_space",
            "How full the metadata store is: 0 normal, 1 tight (logs are compacted early), 2 full (no "
            "journal is taken).",
        )
        self.commit_failures = counter(
            "commit_failures",
            "Commits that the metadata store refused; all but those of a master that stops or is "
            "replaced are tried again.",
        )
        self.fenced_writes = counter("fenced_writes", "Commits refused because another master leads.")
        self.is_leader = gauge("is_leader", "1 while this master leads, else 0.")
        self.leader_changes = counter("leader_changes", "Times this master became the leader.")
        self.watch_lag = gauge(
            "watch_lag_revisions",
            "Revisions by which this standby's directory is behind the store's newest commit.",
        )
        self.misses_waited = counter(
            "misses_waited",
            "Reads that this standby would have answered with a miss, and answered when it had caught up.",
        )
        self.unconfirmed_misses = counter(
            "unconfirmed_misses",
            "Times that catching up before a miss took too long: for a second misses are told as they are.",
        )
        self.directory_reloads = counter(
            "directory_reloads",
            "Times a standby had to read the whole directory again because its past was compacted.",
        )
        self.copy_orders = counter("copy_orders", "Orders to segments to copy pages from another one.")
        self.copied_objects = counter(
            "copied_objects", "Objects of those orders, by what has become of each.", "status"
        )
        self.copied_bytes = counter("copied_bytes", "Bytes that segments have copied from each other.")
        self.logs_to_reload = gauge(
            "logs_to_reload",
            "Segments whose log this standby is still to read again; their pages are those of before.",
        )
        self._collector: Collector | None = None

    def watch(self, state: DirectoryState) -> None:
        """Gauges that are read off the state when they are scraped; of this state instead of an earlier one."""
        self._watch(_StateCollector(state))

    def watch_replay(self, replay: Replay) -> None:
        """Those of a standby: what it has read."""
        self._watch(_ReplayCollector(replay))

    def unwatch(self) -> None:
        """There is nothing to tell of."""
        if self._collector is not None:
            self.registry.unregister(self._collector)
            self._collector = None

    def _watch(self, collector: Collector) -> None:
        self.unwatch()
        self._collector = collector
        self.registry.register(collector)


class _StateCollector(Collector):
    def __init__(self, state: DirectoryState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        state = self._state
        yield _gauge("map_epoch", "Epoch of the segment map.", state.map_epoch)
        yield from _index_gauges(state.index, len(state.namespaces))
        yield _gauge("namespaces_max", "Most namespaces.", state.namespaces.count_max)
        segments = GaugeMetricFamily(PREFIX + "segments", "Segments, by state.", labels=["state"])
        counts = dict.fromkeys(SegmentState, 0)
        stored = capacity = 0
        for segment in state.segments:
            counts[segment.state] += 1
            capacity += segment.record.endpoint.capacity_bytes
            stored += segment.used_bytes
        for segment_state, count in counts.items():
            segments.add_metric([segment_state.name.lower()], count)
        yield segments
        yield _gauge("stored_bytes", "Bytes in use on all segments.", stored)
        yield _gauge("capacity_bytes", "Capacity of all segments.", capacity)


class _ReplayCollector(Collector):
    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def collect(self) -> Iterable[Metric]:
        return _index_gauges(self._replay.index, len(self._replay.current))


def _index_gauges(index: DirectoryIndex, namespaces: int) -> Iterable[Metric]:
    yield _gauge("index_entries", "Entries, replicas counted.", index.entry_count)
    yield _gauge("index_bytes", "Memory of the index.", index.memory_bytes)
    yield _gauge("namespaces", "Current namespaces.", namespaces)


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, documentation, value=value)
