"""Keys of objects: page hashes, shards, pools (docs/protocol.md section 3)."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from kvstore_client import _native
from kvstore_client.protocol import SHARDS_MAX

HASH_BYTES = 32

POOL_KV = 0
POOL_SIDE = 1  # a side pool; which one, its namespace's identity says
POOL_STRING = 0xFFFF

_U16_MAX = 0xFFFF
_SHARD = struct.Struct("<6H")


class Shard(NamedTuple):
    """The rectangle of a page that one object holds: which layers, which heads, which part of the tokens."""

    layer_start: int = 0
    layer_count: int = 0
    head_group: int = 0
    head_groups: int = 1
    token_part: int = 0
    token_parts: int = 1

    def pack(self) -> bytes:
        """The 12 bytes of the wire form. ValueError when the fields don't describe a part of a page."""
        if not all(0 <= field <= _U16_MAX for field in self):
            raise ValueError(f"each field of a shard lies in 0..{_U16_MAX}: {self}")
        if self.head_group >= self.head_groups or self.token_part >= self.token_parts:
            raise ValueError(f"a part's number must be below the number of parts: {self}")
        return _SHARD.pack(*self)


WHOLE = Shard()
"""Everything of the page in one object; also the shard of string keys."""


def pack_shards(shards: Sequence[Shard]) -> bytes:
    """The shard list of a request. ValueError when it is empty, too long, or names a shard twice."""
    if not 0 < len(shards) <= SHARDS_MAX:
        raise ValueError(f"a request takes 1..{SHARDS_MAX} shards, not {len(shards)}")
    if len(set(shards)) != len(shards):
        raise ValueError("a shard is listed twice")
    return b"".join(shard.pack() for shard in shards)


def string_key_hashes(keys: Sequence[str]) -> bytes:
    """Hashes of free-form keys, concatenated. ValueError or TypeError for what can't be a key."""
    return _native.string_hashes(list(keys))


def page_key_hashes(keys: Sequence[str | bytes]) -> bytes:
    """Hashes of page keys, concatenated: each key is 32 raw bytes or 64 hex digits.

    ValueError or TypeError for any other form: a page key that is silently hashed as text would be written
    where no page reader looks.
    """
    return _native.page_hashes(keys)
