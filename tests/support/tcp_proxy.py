"""A TCP proxy that a test puts between client and segment to spoil, hold back or cut what passes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

TO_SERVER, TO_CLIENT = "to_server", "to_client"


class TcpProxy:
    """Listens on a free port of 127.0.0.1 and forwards to `target_port`. Faults are armed from any thread.

    `flip(direction, after_bytes)`: the next byte of that direction behind `after_bytes` more on one
    connection has one bit turned over. `stall(direction, after_bytes)`: from there on nothing passes until
    `release`. `pace(direction, bytes_a_second)`: a link of that rate, for all connections together.
    """

    def __init__(self, target_port: int = 0) -> None:
        self.target_port = target_port
        self.flips_done = 0
        self.stalled = threading.Event()
        self._flip: dict[str, int] = {}
        self._stall: dict[str, int] = {}
        self._rate: dict[str, float] = {}
        self._link_free_at: dict[str, float] = {}
        self._go = threading.Event()
        self._go.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._closing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def flip(self, direction: str, after_bytes: int) -> None:
        with self._lock:
            self._flip[direction] = after_bytes

    def stall(self, direction: str, after_bytes: int) -> None:
        self.stalled.clear()
        self._go.clear()
        with self._lock:
            self._stall[direction] = after_bytes

    def pace(self, direction: str, bytes_a_second: float) -> None:
        with self._lock:
            self._rate[direction] = bytes_a_second
            self._link_free_at.pop(direction, None)

    def release(self) -> None:
        with self._lock:
            self._stall.clear()
        self._go.set()

    def close(self) -> None:
        self._closing = True
        self.release()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target_port), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, server}
            for source, sink, direction in ((client, server, TO_SERVER), (server, client, TO_CLIENT)):
                threading.Thread(target=self._forward, args=(source, sink, direction), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        seen = 0
        buffer = bytearray(65_536)
        with contextlib.suppress(OSError):
            while (count := source.recv_into(buffer)) > 0:
                seen += count
                with self._lock:
                    if seen > self._flip.get(direction, seen):
                        # The last byte of what has just come lies behind the mark: in the middle of the bulk.
                        buffer[count - 1] ^= 0x10
                        del self._flip[direction]
                        self.flips_done += 1
                    hold = seen > self._stall.get(direction, seen)
                    wait_s = self._occupy_link(direction, count)
                if wait_s > 0:
                    time.sleep(wait_s)
                if hold:
                    self.stalled.set()
                    self._go.wait()
                sink.sendall(memoryview(buffer)[:count])
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            with self._lock:
                self._sockets.discard(each)

    def _occupy_link(self, direction: str, count: int) -> float:
        """How long the bytes wait for the link and then take on it."""
        if direction not in self._rate:
            return 0.0
        now = time.monotonic()
        free_at = max(now, self._link_free_at.get(direction, 0.0)) + count / self._rate[direction]
        self._link_free_at[direction] = free_at
        return free_at - now
