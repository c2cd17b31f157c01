"""What a segment is to the others: whose memory, of which life, where it is reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvstore_client.protocol import MapRecord, SegmentState


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One memory of one segment: it says so at registration, the registry keeps it, the map tells it."""

    segment_id: bytes  # 16 bytes, stable across restarts
    pool_id: bytes  # 16 bytes, new when the memory is new
    host: str
    tcp_port: int
    unix_path: str
    capacity_bytes: int

    @staticmethod
    def of(message: Any) -> Endpoint:
        """Of a protobuf message that has these fields: Register, SegmentInfo."""
        return Endpoint(
            message.segment_id,
            message.pool_id,
            message.host,
            message.tcp_port,
            message.unix_path,
            message.capacity_bytes,
        )

    def map_record(self, index: int, state: SegmentState, used_bytes: int) -> MapRecord:
        """As MAP tells it."""
        return MapRecord(
            index,
            state,
            self.segment_id,
            self.pool_id,
            self.capacity_bytes,
            used_bytes,
            self.host,
            self.tcp_port,
            self.unix_path,
        )
