"""One blocking connection to the directory port, past its HELLO."""

from __future__ import annotations

import socket
from types import TracebackType

from kvstore_client.protocol import (
    HEADER_BYTES,
    Header,
    HelloRequest,
    NamespaceReply,
    Op,
    OpenNamespaceRequest,
    ReplyPrefix,
    Role,
    decode_reply,
    request_frame,
)

TIMEOUT_S = 10.0


class Connection:
    """Raises OSError, and RuntimeError when the master refuses."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = 0
        self.call(Op.HELLO, HelloRequest(role=Role.CLIENT, name="scale").encode())

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def call(self, op: Op, body: bytes) -> bytes:
        """The reply's own fields."""
        self._requests += 1
        self._socket.sendall(request_frame(op, self._requests, body))
        header = Header.decode(self._take(HEADER_BYTES))
        prefix: ReplyPrefix
        prefix, fields = decode_reply(self._take(header.body_bytes))
        if prefix.status:
            raise RuntimeError(f"{op.name}: {prefix.status} {prefix.text}")
        return fields

    def open_namespace(self, identity: bytes) -> bytes:
        """Its id."""
        return NamespaceReply.decode(self.call(Op.OPEN_NAMESPACE, OpenNamespaceRequest(identity).encode())).ns

    def _take(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise ConnectionError("the master hung up")
            parts += part
        return bytes(parts)
