"""Keys of objects as operators write them, and the namespace that they are looked for in."""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.cli.errors import EXIT_USAGE, fail
from kvstore_client import _native
from kvstore_client.keys import POOL_KV, POOL_STRING, WHOLE, Shard, page_key_hashes, string_key_hashes
from kvstore_client.protocol import FINGERPRINT_BYTES

SHARD_METAVAR = "L:N:G:GS:P:PS"
SHARD_HELP = (
    "Which part of a page: first layer, layers, head group of head groups, token part of parts; "
    "for rank 1 of TP 4 and 32 layers 0:32:1:4. Without it: the whole page as one object."
)


@dataclass(frozen=True)
class KeyOf:
    """A key of a kind, and what of its fingerprint does not depend on the namespace."""

    text: str
    kind: str
    pool: int = POOL_STRING
    shard: bytes = b""
    page_hash: bytes = b""

    def fingerprint(self, ns: bytes) -> bytes:
        if self.kind == "fingerprint":
            return bytes.fromhex(self.text)
        return _native.fingerprints(ns, self.pool, self.shard, self.page_hash)


def key_of(text: str, *, page: bool, is_fingerprint: bool, pool: int, shard: str) -> KeyOf:
    """Exits when it can't be one."""
    if page and is_fingerprint:
        fail("--page and --fingerprint are both given: keep one", code=EXIT_USAGE)
    try:
        if is_fingerprint:
            if len(bytes.fromhex(text)) != FINGERPRINT_BYTES:
                raise ValueError(f"a fingerprint has {2 * FINGERPRINT_BYTES} hex digits")
            return KeyOf(text, "fingerprint")
        if page:
            return KeyOf(text, "page", pool, parse_shard(shard).pack(), page_key_hashes([text]))
        if shard or pool != POOL_KV:
            raise ValueError("--pool and --shard are for pages: say --page")
        return KeyOf(text, "string", POOL_STRING, WHOLE.pack(), string_key_hashes([text]))
    except ValueError as error:
        fail(f"{text!r}: {error}", code=EXIT_USAGE)


def parse_shard(text: str) -> Shard:
    """`0:32:1:4` -> layers 0 to 31, head group 1 of 4; what is left out is as for a whole page. ValueError."""
    if not text:
        return WHOLE
    numbers = text.split(":")
    if len(numbers) > len(WHOLE) or not all(number.isdecimal() for number in numbers):
        raise ValueError(f"{text!r} is not a shard: up to {len(WHOLE)} numbers with colons, as 0:32:1:4")
    return Shard(*map(int, numbers), *WHOLE[len(numbers) :])
