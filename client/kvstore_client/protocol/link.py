"""Messages of the link between a segment and the master that has registered it (docs/protocol.md section 9).

Each is a frozen dataclass with `encode() -> bytes` (the body) and `decode(body)`; bytes after the known fields are
ignored. ACK, REQUEST_INVENTORY and ENTRIES_REFUSED are notices: the master sends them unasked.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kvstore_client.protocol.codes import PEER_ID_BYTES
from kvstore_client.protocol.frames import Reader, checked_bytes, checked_count

LINK_TOKEN_BYTES = PEER_ID_BYTES
LINK_MESSAGES_UNTAKEN_MAX = 8
"""JOURNAL and INVENTORY messages that may be on their way before the master has said that it took them."""
LINK_BODY_BYTES_MAX = 1 << 20
"""Of what a segment sends on a link; 16,384 entries take 590 kB at most."""
LINK_NOTICE_BODY_BYTES_MAX = 64 << 10
"""Of what a master sends on a link: segments refuse more."""
REASON_BYTES_MAX = 1024
LIMITS = (
    "writing_bytes",
    "held_bytes",
    "pinned_bytes",
    "registered_bytes",
    "registered_buffers",
    "body_bytes",
    "connections",
    "ungreeted",
    "disk_bytes",
)
"""What a segment keeps its peers from having too much of, in the order of a heartbeat. More may follow."""
LIMITS_MAX = 64
_FIRST, _LAST = 1, 2

_JOURNAL = struct.Struct("<QQII")
_INVENTORY = struct.Struct("<QIB3x")
_HEARTBEAT = struct.Struct("<6Q")
_LIMIT_COUNT = struct.Struct("<I4x")
_LIMIT = struct.Struct("<3Q")
_ACK = struct.Struct("<QQ")
_REFUSED = struct.Struct("<QIHH")


@dataclass(frozen=True)
class LinkRequest:
    token: bytes

    def encode(self) -> bytes:
        return checked_bytes(self.token, LINK_TOKEN_BYTES, "link token")

    @staticmethod
    def decode(body: bytes) -> LinkRequest:
        return LinkRequest(Reader(body).take(LINK_TOKEN_BYTES, "link token"))


@dataclass(frozen=True)
class JournalMessage:
    first_seq: int
    last_seq: int
    groups: bytes

    def encode(self) -> bytes:
        return _JOURNAL.pack(self.first_seq, self.last_seq, len(self.groups), 0) + self.groups

    @staticmethod
    def decode(body: bytes) -> JournalMessage:
        reader = Reader(body)
        first_seq, last_seq, groups_bytes, _ = reader.unpack(_JOURNAL, "JOURNAL")
        return JournalMessage(first_seq, last_seq, reader.take(groups_bytes, "groups"))


@dataclass(frozen=True)
class InventoryMessage:
    last_seq: int
    groups: bytes
    first: bool
    last: bool

    def encode(self) -> bytes:
        flags = (_FIRST if self.first else 0) | (_LAST if self.last else 0)
        return _INVENTORY.pack(self.last_seq, len(self.groups), flags) + self.groups

    @staticmethod
    def decode(body: bytes) -> InventoryMessage:
        reader = Reader(body)
        last_seq, groups_bytes, flags = reader.unpack(_INVENTORY, "INVENTORY")
        groups = reader.take(groups_bytes, "groups")
        return InventoryMessage(last_seq, groups, bool(flags & _FIRST), bool(flags & _LAST))


@dataclass(frozen=True)
class LimitUse:
    """How much of a limit is used, and how often something was refused for it since the segment's start."""

    used: int
    limit: int
    refused: int


@dataclass(frozen=True)
class HeartbeatMessage:
    used_bytes: int
    object_count: int
    pinned_bytes: int = 0
    quarantined_slots: int = 0
    digest_mismatches: int = 0
    evicted_objects: int = 0
    limits: tuple[LimitUse, ...] = ()
    """In the order of LIMITS; none from a segment of a release that has none."""

    def encode(self) -> bytes:
        return (
            _HEARTBEAT.pack(
                self.used_bytes,
                self.object_count,
                self.pinned_bytes,
                self.quarantined_slots,
                self.digest_mismatches,
                self.evicted_objects,
            )
            + self._encoded_limits()
        )

    def _encoded_limits(self) -> bytes:
        if not self.limits:
            return b""
        uses = b"".join(_LIMIT.pack(use.used, use.limit, use.refused) for use in self.limits)
        return _LIMIT_COUNT.pack(checked_count(len(self.limits), LIMITS_MAX, "limits")) + uses

    @staticmethod
    def decode(body: bytes) -> HeartbeatMessage:
        reader = Reader(body)
        used, objects, pinned, quarantined, mismatches, evicted = reader.unpack(_HEARTBEAT, "HEARTBEAT")
        limits = HeartbeatMessage._decoded_limits(reader)
        return HeartbeatMessage(used, objects, pinned, quarantined, mismatches, evicted, limits)

    @staticmethod
    def _decoded_limits(reader: Reader) -> tuple[LimitUse, ...]:
        if reader.left < _LIMIT_COUNT.size:
            return ()
        (count,) = reader.unpack(_LIMIT_COUNT, "limits")
        if count > LIMITS_MAX or reader.left < count * _LIMIT.size:
            return ()  # something of a later release
        return tuple(LimitUse(*reader.unpack(_LIMIT, "limits")) for _ in range(count))


@dataclass(frozen=True)
class AckMessage:
    """Entries up to `durable_seq` are durable; `taken` JOURNAL and INVENTORY messages of this link were taken."""

    durable_seq: int
    taken: int

    def encode(self) -> bytes:
        return _ACK.pack(self.durable_seq, self.taken)

    @staticmethod
    def decode(body: bytes) -> AckMessage:
        return AckMessage(*Reader(body).unpack(_ACK, "ACK"))


@dataclass(frozen=True)
class EntriesRefusedMessage:
    last_seq: int
    entries: int
    reason: str

    def encode(self) -> bytes:
        reason = self.reason.encode()
        checked_count(len(reason), REASON_BYTES_MAX, "reason bytes")
        return _REFUSED.pack(self.last_seq, self.entries, len(reason), 0) + reason

    @staticmethod
    def decode(body: bytes) -> EntriesRefusedMessage:
        reader = Reader(body)
        last_seq, entries, reason_bytes, _ = reader.unpack(_REFUSED, "ENTRIES_REFUSED")
        return EntriesRefusedMessage(last_seq, entries, reader.text(reason_bytes, "reason"))
