"""Metrics of the master, in a registry of their own. Names and meanings are the operator's interface."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvstore.master.state.directory_state import DirectoryState
from kvstore_client.protocol import SegmentState

_COMMIT_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class MasterMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "kvstore_master_requests",
            "Directory requests answered, by operation and status.",
            ["op", "status"],
            registry=self.registry,
        )
        self.request_keys = Counter(
            "kvstore_master_request_keys",
            "Entries in directory requests, by operation.",
            ["op"],
            registry=self.registry,
        )
        self.bad_frames = Counter(
            "kvstore_master_bad_frames",
            "Connections closed for a malformed frame header.",
            registry=self.registry,
        )
        self.version_refusals = Counter(
            "kvstore_master_version_refusals",
            "Peers refused because no protocol version is common, by port.",
            ["port"],
            registry=self.registry,
        )
        self.unauthorized = Counter(
            "kvstore_master_unauthorized",
            "Peers refused for a wrong token, by port.",
            ["port"],
            registry=self.registry,
        )
        self.connections = Gauge(
            "kvstore_master_connections", "Open directory connections.", registry=self.registry
        )
        self.refused_connections = Counter(
            "kvstore_master_refused_connections",
            "Directory connections refused because of connections_max.",
            registry=self.registry,
        )
        self.events = Counter(
            "kvstore_master_events",
            "Events of the state machine worth knowing: journal_gap, journal_malformed, entries_refused, "
            "segment_stream_lost, segment_suspect, segment_gone, commits_stalled, commit_failed, record_corrupt, "
            "log_compacted, inventory_stored, ...",
            ["event"],
            registry=self.registry,
        )
        self.corrupt_records = Counter(
            "kvstore_master_corrupt_records",
            "Stored records lost to corruption, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self.commit_seconds = Histogram(
            "kvstore_master_commit_seconds",
            "Time of one group commit into the metadata store.",
            buckets=_COMMIT_BUCKETS_S,
            registry=self.registry,
        )
        self.commit_submissions = Counter(
            "kvstore_master_commit_submissions",
            "Submissions made durable; divided by commits it is the size of a group.",
            registry=self.registry,
        )
        self.journal_entries = Counter(
            "kvstore_master_journal_entries", "Journal entries received.", registry=self.registry
        )
        self.backlog_bytes = Gauge(
            "kvstore_master_commit_backlog_bytes", "Bytes waiting for a commit.", registry=self.registry
        )
        self.metadata_bytes = Gauge(
            "kvstore_master_metadata_bytes", "Size of the metadata store.", registry=self.registry
        )
        self.metadata_space = Gauge(
            "kvstore_master_metadata_space",
            "How full the metadata store is: 0 normal, 1 tight (logs are compacted early), 2 full (no journal "
            "is taken).",
            registry=self.registry,
        )
        self.commit_failures = Counter(
            "kvstore_master_commit_failures",
            "Commits that the metadata store refused; all but those of a master that stops or is replaced are tried again.",
            registry=self.registry,
        )
        self.fenced_writes = Counter(
            "kvstore_master_fenced_writes",
            "Commits refused because another master leads.",
            registry=self.registry,
        )
        self.is_leader = Gauge(
            "kvstore_master_is_leader", "1 while this master leads, else 0.", registry=self.registry
        )
        self.leader_changes = Counter(
            "kvstore_master_leader_changes", "Times this master became the leader.", registry=self.registry
        )
        self.watch_lag = Gauge(
            "kvstore_master_watch_lag_revisions",
            "Revisions by which this standby's directory is behind the store's newest commit.",
            registry=self.registry,
        )
        self.directory_reloads = Counter(
            "kvstore_master_directory_reloads",
            "Times a standby had to read the whole directory again because its past was compacted.",
            registry=self.registry,
        )
        self._collector: _StateCollector | None = None

    def watch(self, state: DirectoryState) -> None:
        """Gauges that are read off the state when they are scraped; of this state instead of an earlier one."""
        self.unwatch()
        self._collector = _StateCollector(state)
        self.registry.register(self._collector)

    def unwatch(self) -> None:
        """A standby has no state to tell of."""
        if self._collector is not None:
            self.registry.unregister(self._collector)
            self._collector = None


class _StateCollector(Collector):
    def __init__(self, state: DirectoryState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        state = self._state
        yield _gauge("kvstore_master_map_epoch", "Epoch of the segment map.", state.map_epoch)
        yield _gauge("kvstore_master_index_entries", "Entries, replicas counted.", state.index.entry_count)
        yield _gauge("kvstore_master_index_bytes", "Memory of the index.", state.index.memory_bytes)
        yield _gauge("kvstore_master_namespaces", "Current namespaces.", len(state.namespaces))
        segments = GaugeMetricFamily("kvstore_master_segments", "Segments, by state.", labels=["state"])
        counts = dict.fromkeys(SegmentState, 0)
        stored = capacity = 0
        for segment in state.segments:
            counts[segment.state] += 1
            capacity += segment.record.capacity_bytes
            stored += segment.used_bytes
        for segment_state, count in counts.items():
            segments.add_metric([segment_state.name.lower()], count)
        yield segments
        yield _gauge("kvstore_master_stored_bytes", "Bytes in use on all segments.", stored)
        yield _gauge("kvstore_master_capacity_bytes", "Capacity of all segments.", capacity)


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, documentation, value=value)
