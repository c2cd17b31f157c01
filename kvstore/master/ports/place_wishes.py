"""What a PLACE says behind its entries (docs/protocol.md section 5): releases add to it, and earlier ones say less."""

from __future__ import annotations

import struct
from typing import NamedTuple

from kvstore.master.state.data_paths import AVOIDED_MAX
from kvstore_client.protocol import (
    FINGERPRINT_BYTES,
    REPLICAS_MAX,
    Reader,
    Status,
    WireError,
    checked_count,
)

_U32 = struct.Struct("<I")
_HEAD_BYTES = 16
_ENTRY_BYTES = 4 + FINGERPRINT_BYTES


class PlaceWishes(NamedTuple):
    avoided: tuple[int, ...] = ()  # indexes of segments whose data ports do not serve the client
    replicas: int = 1  # copies of each object


def wishes_of(body: bytes, count: int) -> PlaceWishes:
    """Those of a PLACE of `count` entries. Raises WireError. A body too short for its entries has none: the index says what is missing."""
    if len(body) <= _HEAD_BYTES + count * _ENTRY_BYTES:
        return PlaceWishes()
    reader = Reader(body[_HEAD_BYTES + count * _ENTRY_BYTES :])
    (avoided,) = reader.unpack(_U32, "avoided_count")
    checked_count(avoided, AVOIDED_MAX, "avoided segments")
    segments = reader.u32s(avoided, "avoided")
    (replicas,) = reader.unpack(_U32, "replicas") if reader.left else (1,)
    if not 1 <= replicas <= REPLICAS_MAX:
        raise WireError(Status.BAD_REQUEST, f"replicas is {replicas}, must be 1 to {REPLICAS_MAX}")
    return PlaceWishes(segments, replicas)
