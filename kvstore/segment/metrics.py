"""Prometheus metrics of a segment, read from the native counters when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kvstore_client._native import data_port_stats

PREFIX = "kvstore_segment_"

_STORE_GAUGES = {
    "capacity_bytes": "Size of the page pool.",
    "used_bytes": "Bytes of the pool in use.",
    "object_count": "Objects that can be read.",
    "pinned_bytes": "Bytes that pins keep from eviction.",
    "retained_bytes": "Bytes of objects that writers or operators have retained: the last to go.",
    "retained_objects": "Those objects.",
    "demoted_objects": "Objects that are the first to go, because writers or operators say so.",
    "slots": "Slots that there are headers for.",
    "slots_free": "Slots that hold nothing; more are made when they run out.",
    "quarantined_slots": "Slots taken out of service because their bytes went bad.",
    "damaged_slots": "Those of them whose header went bad.",
    "quota_limits": "Quotas that this segment keeps namespaces to.",
    "journal_backlog": "Journal entries that no master has confirmed yet.",
    "disk_capacity_bytes": "Size of the disk tier.",
    "disk_used_bytes": "Bytes of the disk tier that pages take.",
    "disk_pages": "Pages on disk.",
    "disk_queued_pages": "Pages that wait to be written to disk.",
    "disk_read_bytes_in_flight": "Memory of reads from disk under way, and of what was read and is being sent.",
    "disk_read_alarm": "0 while the disk is read; 1 after errors, 2 after calls that took too long: nothing is read then.",
    "disk_write_alarm": "The same of writes.",
    "disk_direct": "1 while the disk is used past the page cache (O_DIRECT).",
    "disk_preallocated": "1 while the file has all of its space.",
    "disk_recovered_pages": "Pages that an earlier process has left on disk.",
    "disk_recovery_ms": "Milliseconds that reading the disk's index back took.",
}
_STORE_COUNTERS = {
    "puts": "Objects written.",
    "put_bytes": "Bytes written.",
    "gets": "Objects read.",
    "get_bytes": "Bytes read.",
    "misses": "Reads of objects that are not here.",
    "exists_hits": "Existence probes that found their object.",
    "evicted_objects": "Objects evicted.",
    "dropped_objects": "Copies dropped because the directory has others.",
    "evicted_bytes": "Bytes evicted.",
    "digest_mismatches": "Objects whose bytes did not match their digest: refused at put, or quarantined.",
    "conflicts": "Puts of a key that is there with another length.",
    "quota_evicted_objects": "Objects evicted because their namespaces have more than their quota.",
    "quota_evicted_bytes": "Bytes evicted because their namespaces have more than their quota.",
    "quota_refused": "Objects not taken because their quota has no room and nothing of it may go.",
    "no_space": "Puts refused because nothing could be evicted in time.",
    "not_committed": "Puts whose directory entry was not durable in time.",
    "retentions_refused": "Objects that were to be retained, for which a budget has no room.",
    "retentions_expired": "Objects whose retention has run out.",
    "demotions_ignored": "Objects that were to be demoted in namespaces whose demotions have mostly been wrong.",
    "demotions_contradicted": "Objects that were to be demoted right before what is wanted of the same prefix.",
    "copied_out": "Objects that other segments have fetched to keep a copy of.",
    "copied_out_bytes": "Bytes of those.",
    "copied_in": "Objects that were fetched from other segments, as a master ordered.",
    "copied_in_bytes": "Bytes of those.",
    "evictor_errors": "Rounds of eviction that failed.",
    "bookkeeping_errors": "Calls that broke a rule of the object table, and were ignored.",
    "evicted_to_disk_objects": "Objects evicted that are on disk.",
    "disk_hits": "Pages read from disk.",
    "disk_hit_bytes": "Bytes of them.",
    "disk_promoted_pages": "Pages put back into memory from disk.",
    "disk_written_pages": "Pages written to disk.",
    "disk_written_bytes": "Bytes of them, as written.",
    "disk_evicted_pages": "Pages evicted from disk.",
    "disk_corrupt_pages": "Pages that were not on disk what had been written: a miss, and dropped.",
    "disk_shed_writes": "Pages not written because the disk was in trouble, or too many waited.",
    "disk_shed_reads": "Pages not read because the disk was in trouble, or too much was being read.",
    "disk_late_reads": "Pages that did not come from disk in time.",
    "disk_gone_before_write": "Pages that memory had evicted before they could be written.",
    "disk_too_large": "Pages larger than a region of the disk.",
    "disk_lost_wipes": "Removed pages that could not be wiped from disk: a restart may find them.",
    "disk_read_errors": "Reads of the disk that failed.",
    "disk_write_errors": "Writes of the disk that failed.",
    "disk_alarms": "Times the disk was found in trouble.",
    "journal_overflows": "Times the journal grew past its bound, so that an inventory had to be sent.",
}
_SERVER_GAUGES = {
    "connections": "Client connections that have said HELLO, now.",
    "ungreeted_connections": "Connections that have not said HELLO yet, now.",
    "large_body_bytes": "Bytes that request bodies of over 64 KiB take now.",
    **{name: text for name, text, can_fall in data_port_stats() if can_fall},
}
_SERVER_COUNTERS = {
    "connections_total": "Client connections accepted.",
    "requests": "Requests served.",
    "bad_requests": "Requests refused as malformed.",
    "refused_connections": "Connections refused over the limit.",
    "unauthorized": "Connections refused for a wrong token.",
    "ungreeted_dropped": "Connections closed because they did not say HELLO in time, or for newer ones.",
    "unix_sockets_remade": "Times the unix socket was made anew because its file had been removed.",
    **{name: text for name, text, can_fall in data_port_stats() if not can_fall},
}
_POOL_GAUGES = {
    "bytes": "Memory of the pool: objects and what keeps track of them; 0 until it is known.",
    "touched_bytes": "How much of that was there before the segment began to serve.",
    "locked_bytes": "How much of that is locked in memory.",
    "huge_page_bytes": "Size of the huge pages set aside that it lies on; 0 on others.",
    "kept": "1 while it is a file that outlives the process.",
    "verified_bytes": "Of objects that an earlier process has left: how much was compared with its digests at the start.",
    "adopted_objects": "Objects that an earlier process has left and this one serves since its start.",
}
_CONTROL_GAUGES = {
    "attached": "1 while a master has this segment registered.",
    "journal_sent_seq": "Last journal entry sent to the master.",
    "journal_durable_seq": "Last journal entry the master confirmed.",
}
_CONTROL_COUNTERS = {
    "attaches": "Times this segment attached to a master.",
    "heartbeats_sent": "Heartbeats sent.",
    "heartbeats_failed": "Heartbeats that no master answered.",
    "inventories_sent": "Times the whole content was announced instead of the journal.",
    "journal_gaps": "Holes in the journal, each mended by an inventory.",
    "entries_refused": "Journal entries that a master has left out because they say what can't be.",
    "clusters_refused": "Attempts to attach that met a master of another cluster than that of this segment's pages.",
}

Stats = Callable[[], dict[str, int]]
# (name, used, limit, limit of one connection, refused) of each.
Limits = Callable[[], Sequence[tuple[str, int, int, int, int]]]


class PoolCollector(Collector):
    """The making of the pool, from its first moment on."""

    def __init__(self, pool: Stats) -> None:
        self._read = pool

    def collect(self) -> Iterator[Metric]:
        values = self._read()
        for name, text in _POOL_GAUGES.items():
            yield GaugeMetricFamily(f"{PREFIX}pool_{name}", text, value=values[name])


class SegmentCollector(Collector):
    """Turns the three `stats()` of a segment, and its limits, into metric families; a name that a build lacks is left out."""

    def __init__(self, store: Stats, server: Stats, control: Stats, limits: Limits = tuple) -> None:
        self._limits = limits
        self._sources = (
            (store, PREFIX, _STORE_GAUGES, _STORE_COUNTERS),
            (server, PREFIX + "data_port_", _SERVER_GAUGES, _SERVER_COUNTERS),
            (control, PREFIX + "control_", _CONTROL_GAUGES, _CONTROL_COUNTERS),
        )

    def collect(self) -> Iterator[Metric]:
        for read, prefix, gauges, counters in self._sources:
            values = read()
            for name, text in gauges.items():
                if name in values:
                    yield GaugeMetricFamily(prefix + name, text, value=values[name])
            for name, text in counters.items():
                if name in values:
                    yield CounterMetricFamily(prefix + name.removesuffix("_total"), text, value=values[name])
        yield from self._limit_families()

    def _limit_families(self) -> Iterator[Metric]:
        used = GaugeMetricFamily(
            PREFIX + "limit_used", "How much of a limit of what peers can have is used.", labels=["limit"]
        )
        most = GaugeMetricFamily(PREFIX + "limit_max", "The limit.", labels=["limit"])
        refused = CounterMetricFamily(
            PREFIX + "limit_refused", "Times that something was refused for a limit.", labels=["limit"]
        )
        for name, used_now, limit, _, refused_ever in self._limits():
            used.add_metric([name], used_now)
            most.add_metric([name], limit)
            refused.add_metric([name], refused_ever)
        yield used
        yield most
        yield refused
