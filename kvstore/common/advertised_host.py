"""The address that a server gives to others as its own: one that they can reach.

A server that listens on all interfaces has no address to name. The best is that of the interface its peers' traffic
takes; a loopback address is never it, for on another host that leads to the other host itself.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from kvstore.common.errors import KvstoreError
from kvstore_client.address import Address, is_loopback, is_wildcard

# Of documentation networks (RFC 5737, 3849): no route but the default one leads there.
_ELSEWHERE = {socket.AF_INET: "198.51.100.1", socket.AF_INET6: "2001:db8::1"}
_ANY_PORT = 9
_SIOCGIFADDR = 0x8915
_GLOBAL_SCOPE = "00"


class NoAddressToAdvertise(KvstoreError):
    """A wildcard host on a machine that only has loopback."""


def advertised_host(host: str, peer: str = "") -> str:
    """`host`; for a wildcard the address of the interface that leads to `peer` (host:port), to the default route, or of
    any interface, in this order and never a loopback one.

    NoAddressToAdvertise where there is none; OSError when the name of the peer can't be looked up. Sends nothing.
    """
    if not is_wildcard(host):
        return host
    families = (socket.AF_INET,) if host == "0.0.0.0" else (socket.AF_INET, socket.AF_INET6)
    for address in _candidates(families, peer):
        if not is_loopback(address):
            return address
    raise NoAddressToAdvertise(
        f"no interface but loopback has an address that peers could reach a server on {host or 'all interfaces'} at: "
        "name one with --advertise-host, or serve this machine only with --host 127.0.0.1"
    )


def _candidates(families: tuple[socket.AddressFamily, ...], peer: str) -> Iterator[str]:
    if peer:
        for found, *_, address in socket.getaddrinfo(*Address.parse(peer), type=socket.SOCK_DGRAM):
            if found in families:
                yield from _source_address(found, address)
    for family in families:
        yield from _source_address(family, (_ELSEWHERE[family], _ANY_PORT))
    for _, interface in socket.if_nameindex():
        if socket.AF_INET in families:
            yield from _ipv4_address(interface)
        if socket.AF_INET6 in families:
            yield from _ipv6_addresses(interface)


def _source_address(family: int, destination: tuple[object, ...]) -> Iterator[str]:
    """What packets to there leave from. Connecting a datagram socket asks the kernel for the route and sends nothing."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(destination)
            yield str(probe.getsockname()[0])
    except OSError:
        return  # no route


def _ipv4_address(interface: str) -> Iterator[str]:
    request = struct.pack("256s", interface.encode()[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, request)
    except OSError:
        return  # none
    yield socket.inet_ntoa(answer[20:24])


def _ipv6_addresses(interface: str) -> Iterator[str]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return  # a kernel without IPv6
    for address, _, _, scope, _, name in map(str.split, lines):
        if name == interface and scope == _GLOBAL_SCOPE:
            yield str(ipaddress.IPv6Address(bytes.fromhex(address)))
