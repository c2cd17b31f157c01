"""Keys and shards in their wire form."""

from __future__ import annotations

import hashlib
import struct

import pytest

from kvstore_client import WHOLE, Shard
from kvstore_client._native import Pieces
from kvstore_client.keys import pack_shards, page_key_hashes, string_key_hashes
from kvstore_client.objects import key_truths


def test_a_shard_packs_into_six_little_endian_u16() -> None:
    shard = Shard(1, 2, 3, 4, 5, 6)
    assert struct.unpack("<6H", shard.pack()) == tuple(shard)
    assert WHOLE.pack() == bytes.fromhex("000000000000010000000100")


@pytest.mark.parametrize(
    "shard",
    [
        Shard(layer_start=-1),
        Shard(layer_count=65_536),
        Shard(head_group=1),
        Shard(token_part=2, token_parts=2),
    ],
)
def test_a_shard_that_is_no_part_of_a_page_is_refused(shard: Shard) -> None:
    with pytest.raises(ValueError, match=r"."):
        shard.pack()


def test_shard_lists_are_bounded_and_free_of_duplicates() -> None:
    assert pack_shards([WHOLE]) == WHOLE.pack()
    for shards in ([], [WHOLE, WHOLE], [Shard(layer_start=i) for i in range(65)]):
        with pytest.raises(ValueError, match=r"."):
            pack_shards(shards)


def test_page_keys_are_raw_bytes_or_hex_digits() -> None:
    raw = hashlib.sha256(b"page").digest()
    assert page_key_hashes([raw, raw.hex(), raw.hex().upper()]) == raw * 3
    assert page_key_hashes([raw.hex()]) == raw


def test_page_keys_come_in_any_sequence_and_as_any_bytes() -> None:
    raw = [hashlib.sha256(b"%d" % i).digest() for i in range(300)]
    expected = b"".join(raw)
    assert page_key_hashes([key.hex() for key in raw]) == expected
    assert page_key_hashes(tuple(raw)) == expected
    assert page_key_hashes([bytearray(raw[0]), memoryview(raw[1]), raw[2].hex()]) == expected[:96]
    assert page_key_hashes([]) == b""


@pytest.mark.parametrize("place", range(64))
def test_each_digit_of_a_page_key_is_looked_at(place: int) -> None:
    digits = hashlib.sha256(b"page").hexdigest()
    for wrong in ("g", "/", ":", "@", "`", " ", "é", "\0"):
        with pytest.raises(ValueError, match="64 hex digits"):
            page_key_hashes([digits[:place] + wrong + digits[place + 1 :]])


def test_truths_are_one_a_key_and_need_all_of_its_shards() -> None:
    done = bytes(status in (0, 2) for status in range(256))
    assert key_truths(bytes([0, 1, 2, 255]), done, 1) == [True, False, True, False]
    assert key_truths(bytes([0, 2, 0, 1, 9, 0]), done, 2) == [True, False, False]
    assert key_truths(bytes([0, 0, 0]), done, 2) == [True]
    assert key_truths(b"", done, 3) == []


def test_pieces_are_made_of_plain_tuples_alone() -> None:
    made = Pieces.from_tuples([(4096, 10), (8192, 1 << 30)])
    assert made is not None
    assert (made.entry_count, made.total_bytes) == (2, (1 << 30) + 10)
    for other in (
        [4096, 10],
        (0, 10),
        (4096, 0),
        (4096, (1 << 30) + 1),
        (-1, 10),
        (1 << 64, 10),
        (4096, 10, 1),
        b"x",
    ):
        assert Pieces.from_tuples([(4096, 10), other]) is None


@pytest.mark.parametrize("key", [b"", b"x" * 31, "ab", "zz" * 32, 7, None])
def test_what_is_no_page_key_is_refused(key: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        page_key_hashes([key])  # type: ignore[list-item]


def test_string_keys_are_hashed_with_their_own_domain() -> None:
    expected = hashlib.sha256(b"kvstore/string/v1\0" + "schlüssel".encode()).digest()
    assert string_key_hashes(["schlüssel"]) == expected


def test_a_string_key_over_256_bytes_is_refused() -> None:
    assert len(string_key_hashes(["x" * 256])) == 32
    with pytest.raises(ValueError, match="256"):
        string_key_hashes(["x" * 257])
