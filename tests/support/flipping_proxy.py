"""A TCP proxy that can damage what a server sends: the wire that integrity checks are there for."""

from __future__ import annotations

import contextlib
import socket
import threading


class FlippingProxy:
    """Forwards every connection to `target`; while `armed`, flips one bit in each large reply. A context
    manager.

    A reply counts as large where the server has sent `payload_from` bytes since the client last said
    something: behind headers and status arrays, inside the page bytes.
    """

    def __init__(self, payload_from: int = 4096) -> None:
        self.armed = False
        self.flipped = 0
        self.target: tuple[str, int] | None = None
        self._payload_from = payload_from
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._acceptor = threading.Thread(target=self._accept, daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def __enter__(self) -> FlippingProxy:
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                assert self.target is not None
                server = socket.create_connection(self.target, timeout=5)
            except OSError:
                return
            server.settimeout(None)
            for connection in (client, server):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._connections |= {client, server}
            sent = _ReplyBytes()
            threading.Thread(target=self._forward_requests, args=(client, server, sent), daemon=True).start()
            threading.Thread(target=self._forward_replies, args=(server, client, sent), daemon=True).start()

    def _forward_requests(self, client: socket.socket, server: socket.socket, sent: _ReplyBytes) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                sent.count = 0
                server.sendall(data)
        self._end(client, server)

    def _forward_replies(self, server: socket.socket, client: socket.socket, sent: _ReplyBytes) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                at = self._payload_from - sent.count
                if self.armed and 0 <= at < len(data):
                    data = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
                    with self._lock:
                        self.flipped += 1
                sent.count += len(data)
                client.sendall(data)
        self._end(client, server)

    def _end(self, *connections: socket.socket) -> None:
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        with self._lock:
            self._connections -= set(connections)


class _ReplyBytes:
    """How many bytes the server has sent since the client's last request."""

    count = 0
