"""The links of segments, on the directory port (docs/protocol.md section 9): journal, inventory and heartbeats up, acks down.

A segment registers by gRPC (control_service.py); the answer names a token, which is the first thing that its link says. Session
and link end together. What is on its way is bounded by the segment's side: LINK_MESSAGES_UNTAKEN_MAX messages of at most
16,384 entries (36 bytes each at most) that have not been taken yet, 4.7 MB a segment. While the committer has its fill they
wait here, and heartbeats, which are on the same connection, are heard all the same.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from kvstore.common.logs import log_throttled
from kvstore.master.committer import BACKLOG_BYTES_MAX
from kvstore.master.directory import Directory
from kvstore.master.metrics import MasterMetrics
from kvstore.master.ports.attach_stream import AttachStream
from kvstore.master.segment_questions import Respondent
from kvstore.master.state import events as ev
from kvstore_client.protocol import Op, Status, WireError, request_frame
from kvstore_client.protocol.link import (
    LINK_BODY_BYTES_MAX,
    LINK_MESSAGES_UNTAKEN_MAX,
    LINK_TOKEN_BYTES,
    REASON_BYTES_MAX,
    AckMessage,
    EntriesRefusedMessage,
    HeartbeatMessage,
    InventoryMessage,
    JournalMessage,
    LinkRequest,
)

logger = logging.getLogger(__name__)

LINK_OPS = frozenset((Op.LINK, Op.JOURNAL, Op.INVENTORY, Op.HEARTBEAT))
LINK_TIMEOUT_S = 10.0
"""From the answer to the registration until its link is there."""


class LinkConnection(Protocol):
    """The part of a directory connection that a link uses."""

    def reply(self, op: int, request_id: int, fields: bytes) -> None: ...
    def refuse(self, op: int, request_id: int, status: Status, text: str) -> None: ...
    def send(self, frame: bytes) -> None: ...
    def close(self) -> None: ...


class LinkTable:
    """Sessions that wait for their link, by its token."""

    def __init__(self, metrics: MasterMetrics, link_port: Callable[[], int]) -> None:
        """`link_port`: where segments make their links."""
        self.metrics = metrics
        self.link_port = link_port
        self._waiting: dict[bytes, LinkedSession] = {}

    def await_link(self, session: LinkedSession) -> bytes:
        """The token of the link."""
        token = secrets.token_bytes(LINK_TOKEN_BYTES)
        self._waiting[token] = session
        return token

    def take(self, token: bytes) -> LinkedSession | None:
        """The session, once."""
        return self._waiting.pop(token, None)


class LinkedSession(AttachStream):
    """A segment that makes a link; the Attach stream has the rest."""

    def __init__(
        self,
        directory: Directory,
        heartbeat_interval_ms: int,
        links: LinkTable,
        segment_id: bytes,
        pool_id: bytes,
        takes_questions: bool = False,
        takes_copy_orders: bool = False,
    ) -> None:
        super().__init__(directory, heartbeat_interval_ms)
        self._takes_questions = takes_questions
        self._takes_copy_orders = takes_copy_orders
        self._links = links
        self.segment_id = segment_id
        self.pool_id = pool_id
        self.number = 0  # under which its events come
        self._token = b""
        self._link: SegmentLink | None = None
        self._until_linked: deque[bytes] = deque()  # frames; at most a request for an inventory
        self._deadline: asyncio.TimerHandle | None = None
        self.durable_seq = 0  # the newest to acknowledge

    def accept(self, segment_index: int, durable_seq: int, need_inventory: bool) -> None:
        super().accept(segment_index, durable_seq, need_inventory)
        if self._takes_questions:
            respondent = Respondent(segment_index, self.queue, self._takes_copy_orders)
            self.directory.questions.joined(self.number, respondent)

    def more_of_registered(self) -> dict[str, Any]:
        self._token = self._links.await_link(self)
        late = f"no link came within {LINK_TIMEOUT_S:g} s: can segments reach the directory port?"
        self._deadline = asyncio.get_running_loop().call_later(
            LINK_TIMEOUT_S, self.close, Status.TIMEOUT, late
        )
        return {"link_port": self._links.link_port(), "link_token": self._token}

    def ack(self, durable_seq: int) -> None:
        self.durable_seq = durable_seq
        if self._link is not None:
            self._link.ack_soon()

    def request_inventory(self) -> None:
        self._notify(request_frame(Op.REQUEST_INVENTORY, 0, b""))

    def refuse_entries(self, last_seq: int, entries: int, reason: str) -> None:
        cut = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        refused = EntriesRefusedMessage(last_seq, entries, cut)
        self._notify(request_frame(Op.ENTRIES_REFUSED, 0, refused.encode()))

    def _notify(self, frame: bytes) -> None:
        if self._link is not None:
            self._link.send(frame)
        elif frame not in self._until_linked:
            self._until_linked.append(frame)

    def close(self, status: Status, reason: str) -> None:
        super().close(status, reason)
        self.end_link()

    def end_link(self) -> None:
        """The session is over."""
        self._links.take(self._token)
        if self._deadline is not None:
            self._deadline.cancel()
        link, self._link = self._link, None
        if link is not None:
            link.end()

    def linked(self, link: SegmentLink) -> None:
        self._link = link
        if self._deadline is not None:
            self._deadline.cancel()
        while self._until_linked:
            link.send(self._until_linked.popleft())


class SegmentLink:
    """What a connection of a segment says. Event loop only."""

    def __init__(self, links: LinkTable, connection: LinkConnection) -> None:
        self._links = links
        self._connection = connection
        self._session: LinkedSession | None = None
        self._over = False
        self._waiting: deque[ev.JournalReceived | ev.InventoryReceived] = deque()  # for room in the committer
        self._taking: asyncio.Task[None] | None = None
        self._taken = 0
        self._ack_due = False

    # ---- of the connection -----------------------------------------------------------------------------------

    def take(self, op: int, request_id: int, body: bytes) -> None:
        """One frame whose op is in LINK_OPS."""
        session = self._session
        try:
            if len(body) > LINK_BODY_BYTES_MAX:
                text = (
                    f"a message of a link has at most {LINK_BODY_BYTES_MAX} bytes, this one has {len(body)}"
                )
                raise WireError(Status.BAD_REQUEST, text)
            if op == Op.LINK:
                self._bind(request_id, LinkRequest.decode(body).token)
            elif session is None:
                raise WireError(Status.BAD_REQUEST, "the first message of a link is LINK")
            elif op == Op.HEARTBEAT:
                self._heartbeat(session, request_id, HeartbeatMessage.decode(body))
            elif op == Op.JOURNAL:
                batch = JournalMessage.decode(body)
                self._links.metrics.journal_entries.inc(max(0, batch.last_seq - batch.first_seq + 1))
                self._take_in_turn(
                    ev.JournalReceived(session.number, batch.first_seq, batch.last_seq, batch.groups)
                )
            else:
                chunk = InventoryMessage.decode(body)
                self._take_in_turn(
                    ev.InventoryReceived(
                        session.number, chunk.last_seq, chunk.groups, chunk.first, chunk.last
                    )
                )
        except WireError as error:
            self._refuse(op, request_id, error.status, str(error))

    def lost(self) -> None:
        """The connection is gone: so is the session."""
        session, self._session = self._session, None
        self._stop()
        if session is not None:
            session.close(Status.UNAVAILABLE, "its link was lost")

    # ---- of the session --------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        self._connection.send(frame)

    def ack_soon(self) -> None:
        """One frame for all that becomes durable, or is taken, in this turn of the loop."""
        if not self._ack_due and not self._over:
            self._ack_due = True
            asyncio.get_running_loop().call_soon(self._ack)

    def end(self) -> None:
        self._session = None
        self._stop()
        self._connection.close()

    # ---- common ------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._over = True
        self._waiting.clear()
        if self._taking is not None:
            self._taking.cancel()

    def _bind(self, request_id: int, token: bytes) -> None:
        if self._session is not None:
            raise WireError(Status.BAD_REQUEST, "a link says LINK once")
        session = self._links.take(token)
        if session is None:
            text = "no session waits for this link: it is over, or has its link already; register again"
            raise WireError(Status.UNAUTHORIZED, text)
        self._session = session
        self._connection.reply(Op.LINK, request_id, b"")
        session.linked(self)

    def _refuse(self, op: int, request_id: int, status: Status, text: str) -> None:
        session = self._session
        self._connection.refuse(op, request_id, status, text)
        if session is not None:
            session.close(status, text)  # which ends this
        else:
            self.end()

    def _heartbeat(self, session: LinkedSession, request_id: int, said: HeartbeatMessage) -> None:
        known = session.directory.heartbeat(
            ev.HeartbeatReceived(
                session.segment_id,
                session.pool_id,
                said.used_bytes,
                said.object_count,
                said.pinned_bytes,
                said.quarantined_slots,
                said.digest_mismatches,
                said.evicted_objects,
                said.limits,
            )
        )
        if not known:
            raise WireError(Status.UNAVAILABLE, "this master no longer knows the segment: register again")
        self._connection.reply(Op.HEARTBEAT, request_id, b"")

    def _take_in_turn(self, event: ev.JournalReceived | ev.InventoryReceived) -> None:
        session = self._session
        assert session is not None, "take() has looked"
        if not self._waiting and session.directory.committer.backlog_bytes <= BACKLOG_BYTES_MAX:
            self._take_now(session, event)
            return
        if len(self._waiting) >= LINK_MESSAGES_UNTAKEN_MAX:
            text = f"{LINK_MESSAGES_UNTAKEN_MAX} messages wait to be taken, and no more may be on their way"
            raise WireError(Status.BAD_REQUEST, text)
        self._waiting.append(event)
        if self._taking is None:
            self._taking = asyncio.create_task(self._take_waiting(session), name="link-taking")

    def _take_now(self, session: LinkedSession, event: ev.JournalReceived | ev.InventoryReceived) -> None:
        self._taken += 1
        if isinstance(event, ev.InventoryReceived):
            self.ack_soon()  # a batch is acknowledged when it is durable, an inventory at its end only
        session.directory.handle(event)

    async def _take_waiting(self, session: LinkedSession) -> None:
        try:
            while self._waiting:
                await session.directory.committer.wait_for_room()
                if self._waiting:
                    self._take_now(session, self._waiting.popleft())
                    self.ack_soon()
        except Exception as error:
            fields: dict[str, Any] = {"session": session.number, "error": str(error), "exc_info": error}
            log_throttled(logger, logging.ERROR, "attach_stream_failed", type(error).__name__, **fields)
            session.close(Status.INTERNAL, "the master failed at a message of this link; its log says why")
        finally:
            self._taking = None

    def _ack(self) -> None:
        self._ack_due = False
        if self._session is not None:
            self.send(request_frame(Op.ACK, 0, AckMessage(self._session.durable_seq, self._taken).encode()))
