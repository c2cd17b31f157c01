"""Namespace ids and fingerprints as docs/protocol.md section 3 has them, without the implementation's code."""

from __future__ import annotations

import hashlib
import struct

_MASK = (1 << 64) - 1
_TWO_WORDS = struct.Struct("<2Q")
_FOUR_WORDS = struct.Struct("<4Q")


def namespace_id(identity: bytes, epoch: int) -> bytes:
    inner = hashlib.sha256(identity).digest()
    return hashlib.sha256(b"kvstore/namespace/v2\0" + inner + struct.pack("<I", epoch)).digest()[:8]


def fingerprint(ns: bytes, pool: int, shard: bytes, page_hash: bytes) -> bytes:
    digest = hashlib.sha256(b"kvstore/fingerprint/v2\0" + ns + struct.pack("<H", pool) + shard).digest()
    salt = _TWO_WORDS.unpack(digest[:16])
    w = _FOUR_WORDS.unpack(page_hash)
    a = _mix(w[2] + _mix(w[3]))
    b = w[1] ^ _mix(w[3] + a)
    return _TWO_WORDS.pack(salt[0] ^ _mix(w[0] ^ a ^ _mix(b)), salt[1] ^ b)


def _mix(x: int) -> int:
    x &= _MASK
    x = ((x ^ x >> 33) * 0xFF51AFD7ED558CCD) & _MASK
    x = ((x ^ x >> 33) * 0xC4CEB9FE1A85EC53) & _MASK
    return x ^ x >> 33
