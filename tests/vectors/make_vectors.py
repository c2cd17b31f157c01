"""Writes protocol_v2.json (every message of both ports) and protocol_v2.txt (the same frames, flat, for the
C++ test).

The committed files are the authority: a run of this script that changes them is a change of the protocol.
    PYTHONPATH=tests python tests/vectors/make_vectors.py
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from kvstore_client import protocol
from kvstore_client._native import crc32c, fingerprints, namespace_id
from kvstore_client.protocol import Op, Status, journal, link
from support import wire
from support.wire import names

HERE = Path(__file__).parent
NS = bytes(range(8))
PEER, POOL = bytes(range(16)), bytes(range(16, 32))
FPS = bytes(i * 7 % 256 for i in range(3 * 16))
SHARDS = (wire.WHOLE_SHARD, b"\x01\x00\x02\x00\x03\x00\x04\x00\x05\x00\x06\x00")
HASHES = tuple(bytes([i]) * 32 for i in (0xA1, 0xB2, 0xC3))
KEYS = wire.KeyBlock(NS, 5, SHARDS, HASHES)
TEXT_KEYS = wire.KeyBlock(NS, wire.STRING_POOL, (wire.WHOLE_SHARD,), HASHES)
FETCHED = (
    wire.FetchedObject(
        Status.OK, 1, 1, wire.STRING_POOL, 4096, 0xDEADBEEF, 9, wire.WHOLE_SHARD, HASHES[0], "käse".encode()
    ),
    wire.FetchedObject(Status.TOO_LARGE, pool=5, shard=SHARDS[1], page_hash=HASHES[1]),
    wire.FetchedObject(Status.MISS),
)
FETCHED_NAMES = tuple(names.fingerprint(NS, o.pool, o.shard, o.page_hash) for o in FETCHED)
PUT = wire.PutRequest(KEYS, (1, 2, 3, 4, 5, 6), True, 900, (7, 8, 9))
KEPT_PUT = dataclasses.replace(PUT, intent=1, ttl_ms=60_000)
SEGMENTS = (
    protocol.MapRecord(
        0, protocol.SegmentState.LIVE, PEER, POOL, 1 << 40, 12345, "10.0.0.7", 7450, "/run/kv/s0.sock"
    ),
    protocol.MapRecord(1, protocol.SegmentState.SUSPECT, POOL, PEER, 1 << 30, 0, "node-b", 7451),
)
EPOCH = (3 << 32) + 5
GROUPS = (
    journal.JournalGroup(journal.JournalOp.ADD, NS, FPS, (10, 20, 30)),
    journal.JournalGroup(journal.JournalOp.REMOVE, NS[::-1], FPS[:16], (0,)),
)

# (name, port, op, message, payload bytes of the frame); a reply has a prefix.
REQUESTS: list[tuple[str, str, Op, Any, int]] = [
    ("hello", "both", Op.HELLO, protocol.HelloRequest(protocol.Role.CLIENT, "s3cret", "engine-0", PEER), 0),
    (
        "open_namespace",
        "directory",
        Op.OPEN_NAMESPACE,
        protocol.OpenNamespaceRequest(b'{"model":"m"}', "m-bf16"),
        0,
    ),
    ("map", "directory", Op.MAP, protocol.MapRequest(EPOCH), 0),
    ("exists", "directory", Op.EXISTS, wire.ExistsRequest(NS, FPS), 0),
    ("lookup", "directory", Op.LOOKUP, wire.LookupRequest(NS, FPS, 2), 0),
    ("place", "directory", Op.PLACE, wire.PlaceRequest(NS, (100, 200, 1 << 30), FPS, 1), 0),
    ("bump_namespace", "directory", Op.BUMP_NAMESPACE, protocol.BumpNamespaceRequest(NS), 0),
    ("pin", "data", Op.PIN, wire.PinRequest(10_000, KEYS), 0),
    ("locate", "data", Op.LOCATE, wire.LocateRequest(500, KEYS), 0),
    ("get", "data", Op.GET, wire.GetRequest(KEYS, (0, 1, 2, 3, 4, 5)), 0),
    ("put_with_depths", "data", Op.PUT, PUT, 21 + 6 * 4),
    (
        "put_with_texts",
        "data",
        Op.PUT,
        wire.PutRequest(TEXT_KEYS, (10, 20, 30), False, 0, None, ("a", "", "käse")),
        60 + 3 * 4,
    ),
    ("unpin", "data", Op.UNPIN, wire.UnpinRequest(77), 0),
    ("remove", "data", Op.REMOVE, wire.RemoveRequest(KEYS, True, 250), 0),
    ("attach", "data", Op.ATTACH, None, 0),
    ("register", "data", Op.REGISTER, wire.RegisterRequest(1 << 33, 0), 0),
    ("unregister", "data", Op.UNREGISTER, wire.UnregisterRequest(3), 0),
    ("pull", "data", Op.PULL, wire.PullRequest(PUT, 3, 2, tuple(range(12)), tuple(range(100, 112))), 0),
    ("suspect", "data", Op.SUSPECT, wire.SuspectRequest(KEYS), 0),
    (
        "rdma_connect",
        "data",
        Op.RDMA_CONNECT,
        wire.RdmaConnectRequest(b"the client's worker", crc32c(b"the client's worker")),
        0,
    ),
    (
        "rdma_register",
        "data",
        Op.RDMA_REGISTER,
        wire.RdmaRegisterRequest(0x7F0000001000, 1 << 33, b"a key", crc32c(b"a key")),
        0,
    ),
    (
        "rdma_pull",
        "data",
        Op.PULL,
        wire.RdmaPullRequest(
            wire.PullRequest(PUT, 4, 2, tuple(range(12)), tuple(range(100, 112))),
            tuple(range(0xFFFFFFF0, 0xFFFFFFF6)),
        ),
        0,
    ),
    ("commit", "data", Op.COMMIT, wire.CommitRequest((7 << 32) + 9, 900), 0),
    ("link", "link", Op.LINK, link.LinkRequest(POOL), 0),
    ("journal", "link", Op.JOURNAL, link.JournalMessage(41, 44, journal.encode_groups(GROUPS)), 0),
    (
        "inventory",
        "link",
        Op.INVENTORY,
        link.InventoryMessage(44, journal.encode_groups(GROUPS[:1]), True, False),
        0,
    ),
    ("inventory_last", "link", Op.INVENTORY, link.InventoryMessage(1 << 40, b"", False, True), 0),
    ("heartbeat", "link", Op.HEARTBEAT, link.HeartbeatMessage(1 << 40, 12345, 1 << 20, 2, 3, 1 << 33), 0),
    ("keep", "data", Op.KEEP, wire.KeepRequest(1, 3_600_000, KEYS), 0),
    ("keep_demote", "data", Op.KEEP, wire.KeepRequest(2, 0, TEXT_KEYS), 0),
    ("put_with_intent", "data", Op.PUT, KEPT_PUT, 21 + 6 * 4),
    (
        "put_with_texts_and_intent",
        "data",
        Op.PUT,
        wire.PutRequest(TEXT_KEYS, (10, 20, 30), False, 0, None, ("a", "", "käse"), 2),
        60 + 3 * 4,
    ),
    (
        "pull_with_intent",
        "data",
        Op.PULL,
        wire.PullRequest(KEPT_PUT, 3, 2, tuple(range(12)), tuple(range(100, 112))),
        0,
    ),
    (
        "heartbeat_limits",
        "link",
        Op.HEARTBEAT,
        link.HeartbeatMessage(
            1, 2, 3, 4, 5, 6, (link.LimitUse(1 << 40, 1 << 41, 7), link.LimitUse(0, 1024, 0))
        ),
        0,
    ),
    ("fetch", "data", Op.FETCH, wire.FetchRequest(NS, 4 << 20, FETCHED_NAMES), 0),
    (
        "place_with_replicas",
        "directory",
        Op.PLACE,
        wire.PlaceCopiesRequest(wire.PlaceRequest(NS, (100, 200, 1 << 30), FPS, 1), (7, 9), 2),
        0,
    ),
]
# What a master says on a link unasked: frames without the REPLY flag, like requests.
NOTICES: list[tuple[str, str, Op, Any, int]] = [
    ("ack", "link", Op.ACK, link.AckMessage(44, 3), 0),
    ("request_inventory", "link", Op.REQUEST_INVENTORY, None, 0),
    ("entries_refused", "link", Op.ENTRIES_REFUSED, link.EntriesRefusedMessage(44, 2, "zu groß"), 0),
]

OK_DIRECTORY = protocol.ReplyPrefix(Status.OK, "", EPOCH)
OK_DATA = protocol.ReplyPrefix(Status.OK)
STATUSES = wire.StatusesReply(bytes([0, 1, 2, 3, 5, 15]))
KEPT_PUT_ANSWER = wire.KeptPutReply(STATUSES.statuses, (7 << 32) + 9, 2)
PUT_ANSWER = wire.PutReply(STATUSES.statuses, (7 << 32) + 9)
LOCATIONS = (
    wire.Location(1 << 20, 42, 4096, 0xDEADBEEF, 9, Status.OK, 1),
    wire.Location(0, 0, 0, 0, 0, Status.MISS, 0),
)
GOT = (
    wire.GetEntry(Status.OK, 1, 4096, 0xDEADBEEF),
    wire.GetEntry(Status.LENGTH_MISMATCH, 0, 0, 0),
)
REPLIES: list[tuple[str, str, Op, protocol.ReplyPrefix, Any, int]] = [
    ("hello", "both", Op.HELLO, OK_DIRECTORY, protocol.HelloReply(2, PEER, features=1), 0),
    ("open_namespace", "directory", Op.OPEN_NAMESPACE, OK_DIRECTORY, protocol.NamespaceReply(NS, 4), 0),
    ("map", "directory", Op.MAP, OK_DIRECTORY, protocol.MapReply(SEGMENTS), 0),
    ("exists", "directory", Op.EXISTS, OK_DIRECTORY, wire.ExistsReply((True, False, True) * 3), 0),
    (
        "lookup",
        "directory",
        Op.LOOKUP,
        OK_DIRECTORY,
        wire.LookupReply(
            2, (0, protocol.NO_SEGMENT, 1, 1, protocol.NO_SEGMENT, protocol.NO_SEGMENT), (100, 0, 300)
        ),
        0,
    ),
    (
        "place",
        "directory",
        Op.PLACE,
        OK_DIRECTORY,
        wire.PlaceReply((1, protocol.ALREADY_THERE, protocol.NO_SEGMENT)),
        0,
    ),
    ("bump_namespace", "directory", Op.BUMP_NAMESPACE, OK_DIRECTORY, protocol.NamespaceReply(NS, 5), 0),
    (
        "refused",
        "directory",
        Op.EXISTS,
        protocol.ReplyPrefix(Status.STALE_NAMESPACE, "namespace is not current", EPOCH),
        None,
        0,
    ),
    ("pin", "data", Op.PIN, OK_DATA, STATUSES, 0),
    ("locate", "data", Op.LOCATE, OK_DATA, wire.LocateReply(LOCATIONS), 0),
    ("get", "data", Op.GET, OK_DATA, wire.GetReply(GOT), 4096),
    ("put", "data", Op.PUT, OK_DATA, STATUSES, 0),
    ("put_not_committed", "data", Op.PUT, protocol.ReplyPrefix(Status.NOT_COMMITTED, "late"), STATUSES, 0),
    ("remove", "data", Op.REMOVE, OK_DATA, STATUSES, 0),
    ("attach", "data", Op.ATTACH, OK_DATA, wire.AttachReply(1 << 31, 1 << 30, 1024, 128, POOL), 0),
    ("register", "data", Op.REGISTER, OK_DATA, wire.RegisterReply(3, 1), 0),
    ("unregister", "data", Op.UNREGISTER, OK_DATA, None, 0),
    ("pull", "data", Op.PULL, OK_DATA, STATUSES, 0),
    ("suspect", "data", Op.SUSPECT, OK_DATA, STATUSES, 0),
    (
        "rdma_connect",
        "data",
        Op.RDMA_CONNECT,
        OK_DATA,
        wire.RdmaConnectReply(
            wire.AttachReply(1 << 31, 0, 1024, 128, POOL),
            0x7F0000200000,
            b"the segment's worker",
            b"the pool's key",
            crc32c(b"the segment's workerthe pool's key"),
        ),
        0,
    ),
    ("rdma_register", "data", Op.RDMA_REGISTER, OK_DATA, wire.RdmaRegisterReply(4), 0),
    ("put_with_journal_seq", "data", Op.PUT, OK_DATA, PUT_ANSWER, 0),
    (
        "put_not_committed_with_journal_seq",
        "data",
        Op.PUT,
        protocol.ReplyPrefix(Status.NOT_COMMITTED, "late"),
        PUT_ANSWER,
        0,
    ),
    ("pull_with_journal_seq", "data", Op.PULL, OK_DATA, PUT_ANSWER, 0),
    ("commit", "data", Op.COMMIT, OK_DATA, None, 0),
    ("commit_not_committed", "data", Op.COMMIT, protocol.ReplyPrefix(Status.NOT_COMMITTED, "late"), None, 0),
    ("link", "link", Op.LINK, OK_DIRECTORY, None, 0),
    ("heartbeat", "link", Op.HEARTBEAT, OK_DIRECTORY, None, 0),
    (
        "link_refused",
        "link",
        Op.LINK,
        protocol.ReplyPrefix(Status.UNAUTHORIZED, "no session waits for this link", EPOCH),
        None,
        0,
    ),
    ("keep", "data", Op.KEEP, OK_DATA, wire.StatusesReply(bytes([0, 1, 3, 0, 0, 0])), 0),
    ("put_not_kept", "data", Op.PUT, OK_DATA, KEPT_PUT_ANSWER, 0),
    ("fetch", "data", Op.FETCH, OK_DATA, wire.FetchReply(FETCHED), 4096),
    (
        "place_with_replicas",
        "directory",
        Op.PLACE,
        OK_DIRECTORY,
        wire.PlaceCopiesReply(
            wire.PlaceReply((1, protocol.ALREADY_THERE, protocol.NO_SEGMENT)), (2, 2, protocol.NO_SEGMENT)
        ),
        0,
    ),
]
# (identity, epoch, pool, shard, page hash)
NAMES = (
    (b'{"model":"m"}', 0, 0, wire.WHOLE_SHARD, bytes(32)),
    (b'{"model":"m"}', 1, 0, wire.WHOLE_SHARD, bytes(32)),
    (b'{"model":"m"}', 0, 1, SHARDS[1], bytes(range(32))),
    (b'{"model":"m"}', 0, 1, SHARDS[1], bytes(range(16)) * 2),
    (b'{"model":"m"}', 0, wire.STRING_POOL, wire.WHOLE_SHARD, b"\xff" * 32),
)


def _name(identity: bytes, epoch: int, pool: int, shard: bytes, page_hash: bytes) -> dict[str, Any]:
    ns = namespace_id(identity, epoch)
    return {
        "identity": identity.decode(),
        "epoch": epoch,
        "namespace_id": ns.hex(),
        "pool": pool,
        "shard": shard.hex(),
        "page_hash": page_hash.hex(),
        "fingerprint": fingerprints(ns, pool, shard, page_hash).hex(),
    }


def plain(value: Any) -> Any:
    """Dataclasses and bytes as JSON can hold them: bytes become {"hex": ...}."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def vectors() -> list[dict[str, Any]]:
    out = []
    for number, (name, port, op, message, payload_bytes) in enumerate(REQUESTS):
        body = message.encode() if message is not None else b""
        header = protocol.Header(op, 1000 + number, len(body), payload_bytes)
        out.append(_vector(name, port, "request", header, body, message, None))
    for number, (name, port, op, prefix, message, payload_bytes) in enumerate(REPLIES):
        body = prefix.encode() + (message.encode() if message is not None else b"")
        header = protocol.Header(op, 2000 + number, len(body), payload_bytes, protocol.FLAG_REPLY)
        out.append(_vector(name, port, "reply", header, body, message, prefix))
    for name, port, op, message, payload_bytes in NOTICES:
        body = message.encode() if message is not None else b""
        header = protocol.Header(op, 0, len(body), payload_bytes)
        out.append(_vector(name, port, "notice", header, body, message, None))
    return out


def _vector(
    name: str, port: str, kind: str, header: protocol.Header, body: bytes, message: Any, prefix: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "port": port,
        "kind": kind,
        "header": plain(header),
        "prefix": plain(prefix),
        "message": type(message).__name__ if message is not None else None,
        "fields": plain(message),
        "hex": (header.encode() + body).hex(),
    }


def document() -> dict[str, Any]:
    groups = journal.encode_groups(GROUPS)
    return {
        "protocol_version": protocol.VERSION_MAX,
        "messages": vectors(),
        "journal": {"groups": plain(GROUPS), "hex": groups.hex()},
        "names": [_name(*name) for name in NAMES],
    }


def flat(doc: dict[str, Any]) -> str:
    """One line a frame: name kind op flags request_id body_bytes payload_bytes status map_epoch text_bytes
    hex."""
    lines = []
    for vector in doc["messages"]:
        header, prefix = vector["header"], vector["prefix"] or {"status": 0, "map_epoch": 0, "text": ""}
        numbers = [header[k] for k in ("op", "flags", "request_id", "body_bytes", "payload_bytes")]
        numbers += [int(prefix["status"]), prefix["map_epoch"], len(prefix["text"].encode())]
        lines.append(" ".join([vector["name"], vector["kind"], *map(str, numbers), vector["hex"]]))
    return "\n".join(lines) + "\n"


def main() -> None:
    doc = document()
    (HERE / "protocol_v2.json").write_text(
        json.dumps(doc, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    )
    (HERE / "protocol_v2.txt").write_text(flat(doc))


if __name__ == "__main__":
    main()
