"""Listening sockets for asyncio servers: on every address of a host, IPv6 and dual stack alike, all on one port."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from kvstore.common.names import look_up_patiently
from kvstore_client.address import Address, check_listen_host

BACKLOG = 1024
# How often a free port is looked for that is free on every address of the host.
_FREE_PORT_ATTEMPTS = 16
# What an address that this machine does not have answers.
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listen_host(text: str) -> str:
    """The host of a setting, checked (AddressError): `*` stands for every address of every family that there is."""
    host = check_listen_host(text)
    if host not in ("*", ""):
        return host
    try:
        _bound((socket.AF_INET6, ("::", 0)), 0).close()
    except OSError:
        return "0.0.0.0"  # a kernel without IPv6
    return "::"


async def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """One for each address that a name stands for. `port` 0: a free one, the same for all. OSError names the address. Waits while
    no name server answers."""
    try:
        addresses = await look_up_patiently(
            [Address(host, port)], purpose=f"listening on {host}", flags=socket.AI_PASSIVE
        )
        return _on_one_port(addresses, port)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _ABSENT:
            reason += (
                "; a server listens on an address of its own machine, and on IPv6 where that is switched on"
            )
        raise OSError(error.errno, f"can't listen on {Address(host, port)}: {reason}") from None


def port_of(sockets: Sequence[socket.socket]) -> int:
    """The one they listen on."""
    return int(sockets[0].getsockname()[1])


_SocketAddress = tuple[int, tuple[object, ...]]


def _on_one_port(addresses: Sequence[_SocketAddress], port: int) -> list[socket.socket]:
    attempts = _FREE_PORT_ATTEMPTS if port == 0 else 1
    while True:
        attempts -= 1
        try:
            return _all_bound(addresses, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or attempts == 0:
                raise


def _all_bound(addresses: Sequence[_SocketAddress], port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for address in addresses:
            try:
                sockets.append(_bound(address, port_of(sockets) if sockets else port))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error  # localhost has an IPv6 address where IPv6 is switched off, too
        if absent is not None and not sockets:
            raise absent
    except BaseException:
        for bound in sockets:
            bound.close()
        raise
    return sockets


def _bound(to: _SocketAddress, port: int) -> socket.socket:
    family, (host, _, *scope) = to
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # The wildcard takes IPv4, too, whatever the machine's default is.
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        bound.bind((host, port, *scope))
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound
