"""Whether peers can reach a segment where it says that it is, as far as a master can tell from where it attached from."""

from __future__ import annotations

import ipaddress
from urllib.parse import unquote

from kvstore_client.address import is_loopback, is_wildcard


def peer_host(grpc_peer: str) -> str:
    """The address in what gRPC says of a peer (`ipv4:10.0.0.7:51234`, `ipv6:%5Bfd00::7%5D:51234`); empty: none."""
    family, _, rest = unquote(grpc_peer).partition(":")
    if family not in ("ipv4", "ipv6"):
        return ""
    host = rest.rpartition(":")[0].strip("[]")
    try:
        # A dual-stack socket shows IPv4 peers as ::ffff:10.0.0.7.
        return str(getattr(ipaddress.ip_address(host), "ipv4_mapped", None) or host)
    except ValueError:
        return ""


def address_doubt(advertised_host: str, attached_from: str) -> str:
    """Why clients can't reach a segment there, with the remedy; empty: nothing speaks against it.

    Another address than the one it attached from is fine: a host has several, and there may be a proxy in between.
    """
    remedy = "name its own address with --advertise-host"
    if is_wildcard(advertised_host):
        return (
            f"it says that clients reach it at {advertised_host!r}, where nobody can be reached, and attached from "
            f"{attached_from or 'somewhere'}: {remedy}"
        )
    if attached_from and is_loopback(advertised_host) and not is_loopback(attached_from):
        return (
            f"it says that clients reach it at {advertised_host}, which leads each of them to itself, but it attached "
            f"from {attached_from}: {remedy}"
        )
    return ""
