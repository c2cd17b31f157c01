"""The Python codec against the golden vectors, which the C++ codec is tested against too."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_client import _native, protocol
from kvstore_client.protocol import Status, WireError, journal, link
from support import wire
from support.wire import names

VECTORS = Path(__file__).parents[1] / "vectors"
DOCUMENT = json.loads((VECTORS / "protocol_v2.json").read_text())
MESSAGES = DOCUMENT["messages"]
# Where what may be left out begins, in the messages that have it.
OPTIONAL_FROM = {"heartbeat_limits": 48}


def _maker() -> Any:
    spec = importlib.util.spec_from_file_location("make_vectors", VECTORS / "make_vectors.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _body(vector: dict[str, Any]) -> tuple[bytes, protocol.ReplyPrefix | None]:
    """The message's own fields, and the prefix of a reply."""
    frame = bytes.fromhex(vector["hex"])
    body = frame[protocol.HEADER_BYTES :]
    if vector["kind"] != "reply":
        return body, None
    prefix, fields = protocol.decode_reply(body)
    return fields, prefix


def _class(vector: dict[str, Any]) -> Any:
    return next(
        getattr(codec, vector["message"])
        for codec in (protocol, wire, link)
        if hasattr(codec, vector["message"])
    )


def test_the_codec_reproduces_the_committed_vectors() -> None:
    maker = _maker()
    document = maker.document()
    assert json.loads(json.dumps(document)) == DOCUMENT
    assert maker.flat(document) == (VECTORS / "protocol_v2.txt").read_text()


@pytest.mark.parametrize("name", DOCUMENT["names"], ids=lambda name: name["page_hash"][:8])
def test_names_are_those_of_the_vectors(name: dict[str, Any]) -> None:
    ns = bytes.fromhex(name["namespace_id"])
    assert _native.namespace_id(name["identity"].encode(), name["epoch"]) == ns
    arguments = (ns, name["pool"], bytes.fromhex(name["shard"]), bytes.fromhex(name["page_hash"]))
    assert _native.fingerprints(*arguments).hex() == name["fingerprint"]
    assert names.fingerprint(*arguments).hex() == name["fingerprint"]
    assert names.namespace_id(name["identity"].encode(), name["epoch"]) == ns


def test_every_op_has_a_request_or_notice_vector() -> None:
    assert {v["header"]["op"] for v in MESSAGES if v["kind"] != "reply"} == set(protocol.Op)


@pytest.mark.parametrize("vector", MESSAGES, ids=lambda v: f"{v['name']}-{v['kind']}")
def test_a_vector_decodes_to_its_fields_and_encodes_back(vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["hex"])
    header = protocol.Header.decode(frame)
    assert header == protocol.Header(**vector["header"])
    assert header.encode() == frame[: protocol.HEADER_BYTES]
    assert len(frame) == protocol.HEADER_BYTES + header.body_bytes
    fields, prefix = _body(vector)
    if prefix is not None:
        assert {"status": prefix.status, "text": prefix.text, "map_epoch": prefix.map_epoch} == vector[
            "prefix"
        ]
    if vector["message"] is None:
        assert fields == b""
        return
    message = _class(vector).decode(fields)
    assert _maker().plain(message) == vector["fields"]
    assert message.encode() == fields


@pytest.mark.parametrize(
    "vector", [v for v in MESSAGES if v["message"]], ids=lambda v: f"{v['name']}-{v['kind']}"
)
def test_a_body_cut_anywhere_is_refused_and_a_longer_one_is_read(vector: dict[str, Any]) -> None:
    fields, _ = _body(vector)
    decode = _class(vector).decode
    for cut in range(OPTIONAL_FROM.get(vector["name"], len(fields))):
        with pytest.raises(WireError):
            decode(fields[:cut])
    assert decode(fields + b"later revision") == decode(fields)


@given(st.binary(max_size=200))
def test_no_decoder_raises_anything_but_wire_error(data: bytes) -> None:
    for vector in MESSAGES:
        if vector["message"] is None:
            continue
        with contextlib.suppress(WireError):
            _class(vector).decode(data)
    for decode in (protocol.decode_reply, journal.decode_groups, journal.count_entries):
        with contextlib.suppress(WireError):
            decode(data)


def test_headers_over_the_caps_are_refused() -> None:
    good = protocol.Header(protocol.Op.PUT, 1, protocol.BODY_BYTES_MAX, protocol.PAYLOAD_BYTES_MAX).encode()
    assert protocol.Header.decode(good).body_bytes == protocol.BODY_BYTES_MAX
    with pytest.raises(WireError, match="magic") as bad_magic:
        protocol.Header.decode(b"HTTP" + good[4:])
    assert bad_magic.value.status == Status.BAD_REQUEST
    for header in (
        protocol.Header(protocol.Op.PUT, 1, protocol.BODY_BYTES_MAX + 1),
        protocol.Header(protocol.Op.PUT, 1, 0, protocol.PAYLOAD_BYTES_MAX + 1),
    ):
        with pytest.raises(WireError, match="over the cap") as too_large:
            protocol.Header.decode(header.encode())
        assert too_large.value.status == Status.TOO_LARGE


def test_counts_over_the_caps_are_refused_before_anything_is_read() -> None:
    too_many = (protocol.ENTRIES_MAX + 1).to_bytes(4, "little")
    for cls in (wire.ExistsRequest, wire.LookupRequest, wire.PlaceRequest):
        with pytest.raises(WireError) as error:
            cls.decode(bytes(8) + too_many + bytes(4))
        assert error.value.status == Status.TOO_LARGE


def test_journal_groups_match_the_vector() -> None:
    data = bytes.fromhex(DOCUMENT["journal"]["hex"])
    groups = journal.decode_groups(data)
    assert _maker().plain(tuple(groups)) == DOCUMENT["journal"]["groups"]
    assert journal.encode_groups(groups) == data
    assert journal.count_entries(data) == 4


@given(st.lists(st.integers(0, 5), max_size=5), st.data())
def test_skipping_loses_no_entry_behind(sizes: list[int], data: Any) -> None:
    groups = [
        journal.JournalGroup(
            journal.JournalOp.ADD if g % 2 else journal.JournalOp.REMOVE,
            bytes([g] * 8),
            b"".join(bytes([g, i] * 8) for i in range(size)),
            tuple(range(size)),
        )
        for g, size in enumerate(sizes)
    ]

    def entries(encoded: bytes) -> list[tuple[Any, ...]]:
        return [
            (group.op, group.ns, group.fingerprints[i * 16 : i * 16 + 16], group.lengths[i])
            for group in journal.decode_groups(encoded)
            for i in range(len(group.lengths))
        ]

    encoded = journal.encode_groups(groups)
    skip = data.draw(st.integers(0, sum(sizes)))
    assert entries(journal.skip_entries(encoded, skip)) == entries(encoded)[skip:]
