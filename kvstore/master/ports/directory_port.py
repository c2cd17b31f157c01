"""The directory port: framed requests of clients (docs/protocol.md sections 4 and 5), answered from the
native index, and the links of segments (segment_link.py).

Requests of one connection are answered in order. Hot operations are answered before the next one is looked
at; OPEN_NAMESPACE and BUMP_NAMESPACE wait for the store, and reading stops until they are done. What is
buffered is bounded by the frame caps, by the transport's read size, and by the write buffer's high-water
mark, above which no request is read.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import struct
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

from kvstore.common.errors import RefusedError
from kvstore.common.identity import check_identity
from kvstore.common.listening import BACKLOG, listening_sockets, port_of
from kvstore.common.logs import log_throttled
from kvstore.master.ha.fresh_reads import FreshReads
from kvstore.master.metrics import MasterMetrics
from kvstore.master.ports.place_wishes import wishes_of
from kvstore.master.ports.segment_link import LINK_OPS, LinkTable, SegmentLink
from kvstore.master.ports.served_map import ServedMap
from kvstore.master.roles import Roles
from kvstore_client import _native, protocol
from kvstore_client.protocol import (
    FLAG_REPLY,
    FRAME_VERSION,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PREFIX,
    VERSION_MAX,
    VERSION_MIN,
    Op,
    Status,
    WireError,
)
from kvstore_client.tokens import TokenRole, Tokens, refusal_text

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 5.0
HELLO_BODY_BYTES_MAX = 4096
# Connections over the limit that are open until they have been told so, and what each has for that; further ones are just closed.
REFUSED_AT_A_TIME = 64
REFUSAL_TIMEOUT_S = 1.0
# How long a limit that was reached is told to operators.
REFUSAL_TOLD_S = 60.0
WRITE_BUFFER_HIGH_BYTES = 1 << 20
_COUNT_AT = struct.Struct("<8xI")
_PREFERRED_AT = struct.Struct("<12xI")
_OP_NAMES = {int(op): op.name.lower() for op in Op}
_NEEDED: dict[int, TokenRole] = {
    protocol.Role.CLIENT: TokenRole.ENGINE,
    protocol.Role.SEGMENT: TokenRole.SEGMENT,
    protocol.Role.TOOL: TokenRole.ADMIN,
}
# Engines too: `clear` is a verb of theirs, and what they may write they may as well end.
_MAY_CLEAR = frozenset((TokenRole.ENGINE, TokenRole.ADMIN))
_HOT = (Op.EXISTS, Op.LOOKUP, Op.PLACE)


@dataclass(frozen=True)
class PortOptions:
    """`connections_max` clients, and beside them, whatever clients do, `links_max` segments and peers that have not greeted yet."""

    tokens: Tokens = field(default_factory=lambda: Tokens(()))
    connections_max: int = 16_384
    links_max: int = 4096


class DirectoryPort:
    """Listens and keeps the open connections."""

    def __init__(
        self, roles: Roles, metrics: MasterMetrics, options: PortOptions, links: LinkTable | None = None
    ) -> None:
        self.roles = roles
        self.links = links
        self.metrics = metrics
        self.options = options
        self.connections: set[DirectoryConnection] = set()
        self.clients = 0  # of them; the rest are segments, and who has not greeted yet
        self.refused: set[DirectoryConnection] = set()  # that are still to be told so
        self.refused_at = -math.inf
        metrics.connections_max.set(options.connections_max)
        self._counters: dict[tuple[int, int], Any] = {}
        self._key_counters = {int(op): metrics.request_keys.labels(_OP_NAMES[op]) for op in _HOT}
        self._servers: list[asyncio.Server] = []
        self.map = ServedMap(roles)

    async def start(self, host: str, port: int) -> None:
        """OSError names the address."""
        loop = asyncio.get_running_loop()
        for sock in await listening_sockets(host, port):
            server = await loop.create_server(lambda: DirectoryConnection(self), sock=sock, backlog=BACKLOG)
            self._servers.append(server)

    @property
    def port(self) -> int:
        """0 while it is not open."""
        return port_of(self._servers[0].sockets) if self._servers else 0

    async def stop(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        for connection in [*self.connections, *self.refused]:
            connection.close()
        for server in servers:
            await server.wait_closed()

    def problems(self) -> list[str]:
        """Empty while nobody is, and was lately, refused."""
        if time.monotonic() - self.refused_at >= REFUSAL_TOLD_S:
            return []
        return [f"clients are refused: {self.limit_text()}"]

    def limit_text(self) -> str:
        """Why there is no room for another client."""
        count = self.options.connections_max
        return (
            f"{count} are connected to this master, the most that connections_max and its limit of open files allow: "
            "raise them"
        )

    def count(self, op: int, status: int, keys: int = 0) -> None:
        counter = self._counters.get((op, status))
        if counter is None:
            name = _OP_NAMES.get(op, "unknown")
            counter = self.metrics.requests.labels(name, Status(status).name.lower())
            self._counters[(op, status)] = counter
        counter.inc()
        if keys:
            self._key_counters[op].inc(keys)


class DirectoryConnection(asyncio.Protocol):
    def __init__(self, port: DirectoryPort) -> None:
        self._port = port
        self._roles = port.roles
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._need = HEADER_BYTES  # bytes that make the frame at the head of the buffer whole
        self._out: list[bytes] = []
        self._greeted = False
        self._refused = False  # over the limit: its first frame is answered with that
        self._is_client = False  # counted as one
        self._held: frozenset[TokenRole] = frozenset()  # what its token is for
        self._closing = False
        self._write_paused = False
        self._waiting: asyncio.Task[None] | None = None
        self._hello_timer: asyncio.TimerHandle | None = None
        self._link: SegmentLink | None = None  # of a segment
        self._peer = self._host = ""

    # ---- transport -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peername = transport.get_extra_info("peername")
        self._peer, self._host = str(peername), str(peername[0]) if peername else ""
        options = self._port.options
        if len(self._port.connections) >= options.connections_max + options.links_max:
            self._refuse_connection()
            return
        self._port.connections.add(self)
        self._port.metrics.connections.inc()
        loop = asyncio.get_running_loop()
        self._hello_timer = loop.call_later(HELLO_TIMEOUT_S, self.close)

    def _count_refusal(self) -> None:
        port = self._port
        port.refused_at = time.monotonic()
        port.metrics.refused_connections.inc()
        log_throttled(
            logger, logging.WARNING, "connection_refused", "", peer=self._peer, why=port.limit_text()
        )

    def _refuse_connection(self) -> None:
        """A peer that was just cut off would try again at once, and could not say why."""
        self._count_refusal()
        if len(self._port.refused) >= REFUSED_AT_A_TIME:
            self._closing = True
            self._transport.abort()
            return
        self._refused = True
        self._port.refused.add(self)
        self._hello_timer = asyncio.get_running_loop().call_later(REFUSAL_TIMEOUT_S, self.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._port.refused.discard(self)
        self._port.clients -= self._is_client
        if self in self._port.connections:
            self._port.connections.discard(self)
            self._port.metrics.connections.dec()
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if self._waiting is not None:
            self._waiting.cancel()
        if self._link is not None:
            self._link.lost()
        self._buffer.clear()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._go_on()

    def close(self) -> None:
        """What has been answered still goes out."""
        if not self._closing:
            self._closing = True
            self._flush()
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            self._buffer += data
            if self._blocked() or len(self._buffer) < self._need:
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        self._consume(data)

    def _blocked(self) -> bool:
        return self._closing or self._write_paused or self._waiting is not None

    def _go_on(self) -> None:
        """After a pause: first what is buffered, then the socket."""
        data = bytes(self._buffer)
        self._buffer.clear()
        self._consume(data)
        if not self._blocked():
            self._transport.resume_reading()

    def _consume(self, data: bytes) -> None:
        at, size = 0, len(data)
        need = HEADER_BYTES
        while not self._blocked():
            need = HEADER_BYTES
            if size - at < need:
                break
            magic, version, op, flags, request_id, body_bytes, payload_bytes = HEADER.unpack_from(data, at)
            if (
                magic != MAGIC
                or version != FRAME_VERSION
                or flags & FLAG_REPLY
                or payload_bytes
                or body_bytes > (protocol.BODY_BYTES_MAX if self._greeted else HELLO_BODY_BYTES_MAX)
            ):
                self._refuse_frame(magic, version, op, request_id)
                break
            need += body_bytes
            if size - at < need:
                break
            body = data[at + HEADER_BYTES : at + need]
            at += need
            self._answer(op, request_id, body)
        if not self._closing and at < size:
            self._buffer += data[at:] if at else data
            self._need = need
        self._flush()

    def _flush(self) -> None:
        if self._out and not self._transport.is_closing():
            out, self._out = self._out, []
            self._transport.write(b"".join(out) if len(out) > 1 else out[0])

    def _log(self, level: int, event: str, **fields: object) -> None:
        """A stranger can make it happen with each connection."""
        log_throttled(logger, level, event, self._host, peer=self._peer, **fields)

    # ---- replies -------------------------------------------------------------------------------------------

    def reply(self, op: int, request_id: int, fields: bytes, keys: int = 0) -> None:
        prefix = PREFIX.pack(0, 0, 0, self._roles.backend.map_epoch)
        header = HEADER.pack(MAGIC, FRAME_VERSION, op, FLAG_REPLY, request_id, len(prefix) + len(fields), 0)
        self._out.append(header + prefix + fields)
        self._port.count(op, 0, keys)
        if len(fields) > WRITE_BUFFER_HIGH_BYTES // 4:
            self._flush()

    def refuse(self, op: int, request_id: int, status: Status, text: str) -> None:
        prefix = protocol.ReplyPrefix(status, text, self._roles.map_epoch)
        self._out.append(protocol.reply_frame(op, request_id, prefix))
        self._port.count(op, status)

    def send(self, frame: bytes) -> None:
        """A frame that answers no request."""
        self._out.append(frame)
        self._flush()

    def _refuse_frame(self, magic: int, version: int, op: int, request_id: int) -> None:
        """A header that can't be a request of ours: what follows can't be told apart any more."""
        if magic == MAGIC and version != FRAME_VERSION:
            self._refuse_version(op, request_id, f"frame version {version}", FRAME_VERSION, FRAME_VERSION)
            return
        self._port.metrics.bad_frames.inc()
        self._log(logging.WARNING, "bad_frame", magic=hex(magic), op=op)
        self.close()

    def _refuse_version(
        self, op: int, request_id: int, what: str, low: int = VERSION_MIN, high: int = VERSION_MAX
    ) -> None:
        text = f"{what} is not spoken here: this master speaks {low} to {high}"
        self._port.metrics.version_refusals.labels("directory").inc()
        self._log(logging.ERROR, "version_refused", text=text)
        self.refuse(op, request_id, Status.UNSUPPORTED_VERSION, text)
        self.close()

    # ---- requests ------------------------------------------------------------------------------------------

    def _answer(self, op: int, request_id: int, body: bytes) -> None:
        try:
            if self._refused:
                self.refuse(op, request_id, Status.UNAVAILABLE, self._port.limit_text())
                self.close()
            elif not self._greeted:
                self._hello(op, request_id, body)
            elif op in _HOT:
                self._hot(op, request_id, body)
            elif self._link is not None and op in LINK_OPS:
                self._link.take(op, request_id, body)
            elif op == Op.MAP:
                protocol.MapRequest.decode(body)
                self.reply(op, request_id, self._port.map.fields())
            elif op == Op.OPEN_NAMESPACE:
                opened = protocol.OpenNamespaceRequest.decode(body)
                check_identity(opened.identity)
                work = self._roles.backend.open_namespace(opened.identity, opened.name)
                self._wait_for(op, request_id, _encoded(work))
            elif op == Op.BUMP_NAMESPACE and not self._held & _MAY_CLEAR:
                self._refuse_unauthorized(op, request_id, refusal_text(TokenRole.ENGINE, self._held))
            elif op == Op.BUMP_NAMESPACE:
                bumped = protocol.BumpNamespaceRequest.decode(body)
                self._wait_for(op, request_id, _encoded(self._roles.backend.bump_namespace(bumped.ns)))
            else:
                raise RefusedError(Status.BAD_REQUEST, f"op {op} is none of the directory port's")
        except (WireError, RefusedError) as error:
            self.refuse(op, request_id, error.status, str(error))
        except _native.WireError as error:
            self.refuse(op, request_id, Status(error.status), str(error))
        except Exception as error:
            fields: dict[str, Any] = {"peer": self._peer, "op": op, "exc_info": error}
            log_throttled(logger, logging.ERROR, "request_failed", f"{op} {type(error).__name__}", **fields)
            self.refuse(
                op, request_id, Status.INTERNAL, "the master failed at this request; its log says why"
            )

    def _hot(self, op: int, request_id: int, body: bytes) -> None:
        # A body too short for its namespace and count is left to the index, which says what is missing.
        keys = _COUNT_AT.unpack_from(body)[0] if len(body) >= 16 else 0
        if op == Op.PLACE:
            self._check_current(body)
            preferred = _PREFERRED_AT.unpack_from(body)[0] if len(body) >= 16 else protocol.NO_SEGMENT
            wishes = wishes_of(body, keys)
            fields = self._roles.backend.place(body, preferred, wishes.avoided, wishes.replicas)
        else:
            fields = self._read(op, body)
            fresh = self._roles.fresh_reads
            if fresh is not None and fresh.worth_asking and _says_missing(op, fields, keys):
                self._wait_for(op, request_id, self._read_caught_up(fresh, op, body), keys)
                return
        self.reply(op, request_id, fields, keys)

    def _read(self, op: int, body: bytes) -> bytes:
        self._check_current(body)
        index = self._roles.backend.index
        return index.exists(body) if op == Op.EXISTS else index.lookup(body)

    async def _read_caught_up(self, fresh: FreshReads, op: int, body: bytes) -> bytes:
        self._port.metrics.misses_waited.inc()
        await fresh.caught_up()
        return self._read(op, body)

    def _check_current(self, body: bytes) -> None:
        if len(body) < 16:
            return
        if self._roles.backend.is_current(body[:8]):
            self._roles.backend.used(body[:8])
            return
        if self._roles.directory is None:
            # The leader may have opened it a moment ago.
            raise RefusedError(Status.NOT_LEADER, self._roles.not_leader_text())
        text = "the namespace id is not current: open the namespace again"
        raise RefusedError(Status.STALE_NAMESPACE, text)

    def _hello(self, op: int, request_id: int, body: bytes) -> None:
        if op != Op.HELLO:
            raise_closing = RefusedError(Status.BAD_REQUEST, "the first frame of a connection is HELLO")
            self.refuse(op, request_id, raise_closing.status, str(raise_closing))
            self.close()
            return
        try:
            hello = protocol.HelloRequest.decode(body)
        except WireError as error:
            self.refuse(op, request_id, error.status, str(error))
            self.close()
            return
        if hello.min_version > VERSION_MAX or hello.max_version < VERSION_MIN:
            self._refuse_version(
                op, request_id, f"protocol version {hello.min_version} to {hello.max_version}"
            )
            return
        self._held = self._port.options.tokens.roles_of(hello.token)
        needed = _NEEDED.get(hello.role, TokenRole.ENGINE)
        if needed in self._held:
            self._admit(op, request_id, hello)
            return
        text = refusal_text(needed, self._held) if self._held else "the token is wrong"
        self._refuse_unauthorized(op, request_id, f"{hello.name}: {text}" if hello.name else text)
        self.close()

    def _refuse_unauthorized(self, op: int, request_id: int, text: str) -> None:
        self._port.metrics.unauthorized.labels("directory").inc()
        self._log(logging.WARNING, "unauthorized", text=text)
        self.refuse(op, request_id, Status.UNAUTHORIZED, text)

    def _admit(self, op: int, request_id: int, hello: protocol.HelloRequest) -> None:
        try:
            cluster_id = self._roles.backend.cluster_id
        except RefusedError as error:
            self.refuse(op, request_id, error.status, str(error))
            self.close()
            return
        if hello.expected_peer not in (protocol.ANY_PEER, cluster_id):
            self.refuse(op, request_id, Status.WRONG_PEER, f"this is cluster {cluster_id.hex()}")
            self.close()
            return
        if hello.role != protocol.Role.SEGMENT:
            if self._port.clients >= self._port.options.connections_max:
                self._count_refusal()
                self.refuse(op, request_id, Status.UNAVAILABLE, self._port.limit_text())
                self.close()
                return
            self._is_client = True
            self._port.clients += 1
        elif self._port.links is not None:
            self._link = SegmentLink(self._port.links, self)
        self._greeted = True
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        reply = protocol.HelloReply(min(hello.max_version, VERSION_MAX), cluster_id)
        self.reply(op, request_id, reply.encode())

    def _wait_for(self, op: int, request_id: int, work: Coroutine[Any, Any, bytes], keys: int = 0) -> None:
        """Answers with the fields that `work` comes to; what is requested meanwhile has to wait."""
        self._transport.pause_reading()
        self._waiting = asyncio.create_task(self._finish(op, request_id, work, keys))

    async def _finish(self, op: int, request_id: int, work: Coroutine[Any, Any, bytes], keys: int) -> None:
        try:
            self.reply(op, request_id, await work, keys)
        except RefusedError as error:
            self.refuse(op, request_id, error.status, str(error))
        self._waiting = None
        if not self._closing:
            self._go_on()


async def _encoded(work: Coroutine[Any, Any, protocol.NamespaceReply]) -> bytes:
    return (await work).encode()


def _says_missing(op: int, fields: bytes, count: int) -> bool:
    """Whether a reply to EXISTS or LOOKUP of `count` entries has one that is not there."""
    if op == Op.EXISTS:
        return int.from_bytes(fields[8:], "little").bit_count() < count
    return protocol.NO_SEGMENT in memoryview(fields)[8 : 8 + 4 * count].cast("I")
