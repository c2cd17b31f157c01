"""Segments of the previous release: journal, inventory, acks and commands are messages of the Attach stream.

Those of this release make a link (segment_link.py) and say so when they register. This module goes, and with it the messages
"of the previous release" in control.proto, in the release after this one.
"""

from __future__ import annotations

from typing import Any

from kvstore.master.directory import Directory
from kvstore.master.metrics import MasterMetrics
from kvstore.master.ports.attach_stream import AttachStream
from kvstore.master.state import events as ev
from kvstore.v1 import control_pb2 as pb


class StreamedSession(AttachStream):
    """Acknowledgements are cumulative, so only the newest waits."""

    def __init__(self, directory: Directory, heartbeat_interval_ms: int) -> None:
        super().__init__(directory, heartbeat_interval_ms)
        self._ack_seq: int | None = None

    def ack(self, durable_seq: int) -> None:
        self._ack_seq = durable_seq
        self._wake.set()

    def request_inventory(self) -> None:
        self.queue(pb.MasterMessage(inventory_request=pb.InventoryRequest()))

    def refuse_entries(self, last_seq: int, entries: int, reason: str) -> None:
        refused = pb.EntriesRefused(last_seq=last_seq, entries=entries, reason=reason)
        self.queue(pb.MasterMessage(entries_refused=refused))

    def newest(self) -> Any | None:
        seq, self._ack_seq = self._ack_seq, None
        return None if seq is None else pb.MasterMessage(journal_ack=pb.JournalAck(durable_seq=seq))


async def take_streamed(message: Any, number: int, directory: Directory, metrics: MasterMetrics) -> None:
    """Hands a message of session `number` to the directory; what it does not know comes from a later revision."""
    kind = message.WhichOneof("body")
    if kind == "journal":
        batch = message.journal
        metrics.journal_entries.inc(max(0, batch.last_seq - batch.first_seq + 1))
        directory.handle(ev.JournalReceived(number, batch.first_seq, batch.last_seq, batch.groups))
    elif kind == "inventory":
        chunk = message.inventory
        directory.handle(ev.InventoryReceived(number, chunk.last_seq, chunk.groups, chunk.first, chunk.last))
    await directory.committer.wait_for_room()
