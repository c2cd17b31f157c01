"""`host:port`, read and written in one way by the client, the servers and the tools. Pure values; resolves nothing."""

import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple

PORT_MAX = 65_535
HOST_CHARACTERS_MAX = 253

DIRECTORY_PORT = 7440
"""Of a master, for clients."""
CONTROL_PORT = 7441
"""Of a master, for segments and tools (gRPC)."""

_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FORM = "'host:port', as in 10.0.0.7:7441, master-0:7441 or [fd00::7]:7441"


class AddressError(ValueError):
    """A text that is no address; the message quotes it and says how to write what was meant."""


class Address(NamedTuple):
    """Where a server is reached. An IPv6 host has no brackets here; `str()` writes them."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, default_port: int | None = None) -> "Address":
        """Reads `host:port`, `[IPv6]:port`; the port may be left out where there is a default. AddressError."""
        text = text.strip()
        _refuse_url(text, default_port)
        if text.startswith("["):
            host, bracket, rest = text[1:].partition("]")
            if not bracket or (rest and not rest.startswith(":")) or not is_ipv6(host):
                raise AddressError(f"{text!r}: brackets hold an IPv6 address, as in [fd00::7]:7441")
            return cls.of(host, _port(text, rest[1:] if rest else None, default_port))
        if text.count(":") > 1:
            raise AddressError(_bare_ipv6(text, default_port))
        host, colon, port = text.partition(":")
        if not host:
            raise AddressError(f"{text!r} names no host: write {_FORM}")
        return cls.of(host, _port(text, port if colon else None, default_port))

    @classmethod
    def of(cls, host: str, port: int) -> "Address":
        """Checks the parts, for a peer to be connected to. AddressError."""
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port <= PORT_MAX:
            raise AddressError(f"port {port!r} of {host!r}: a port lies in 1..{PORT_MAX}")
        return cls(check_peer_host(host), port)

    @property
    def is_loopback(self) -> bool:
        """Whether only processes on the same machine reach it."""
        return is_loopback(self.host)


def parse_addresses(
    texts: str | Sequence[str], count_max: int, default_port: int | None = None
) -> tuple[Address, ...]:
    """Addresses from one text with commas, or from a text each; doubles are dropped. AddressError."""
    parts = texts.split(",") if isinstance(texts, str) else texts
    found = dict.fromkeys(Address.parse(part, default_port) for part in parts if part.strip())
    if not 0 < len(found) <= count_max:
        raise AddressError(f"needs 1..{count_max} addresses {_FORM}; there are {len(found)}")
    return tuple(found)


def check_host(host: str) -> str:
    """`host` if it is a host name, an IPv4 or an IPv6 address without brackets. AddressError."""
    if not isinstance(host, str):
        raise AddressError(f"a host is a text, not {host!r}")
    if ":" in host:
        if not is_ipv6(host):
            raise AddressError(f"{host!r} is not an IPv6 address")
    elif host.replace(".", "").isdigit() and host.isascii():
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise AddressError(f"{host!r} is not an IPv4 address") from None
    elif len(host) > HOST_CHARACTERS_MAX or not _NAME.fullmatch(host):
        raise AddressError(
            f"{host!r} is no host name: letters, digits, '-', '_' and '.', at most {HOST_CHARACTERS_MAX} of them"
        )
    return host


def check_peer_host(host: str) -> str:
    """As check_host, for what others connect to: no wildcard. AddressError."""
    if is_wildcard(host):
        raise AddressError(
            f"{host!r} is what a server listens on, not where it is reached: name one of its addresses, or "
            "localhost on the same machine"
        )
    return check_host(host)


def check_listen_host(host: str) -> str:
    """As check_host, for a server's own address: wildcards are fine, and brackets, which it leaves away."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") and ":" in host else host
    if ":" in bare and not is_ipv6(bare):
        raise AddressError(f"{host!r} is a host and more: the port has an option of its own")
    return bare if is_wildcard(bare) else check_host(bare)


def is_wildcard(host: str) -> bool:
    """Whether it means every address of the machine: to listen on, nobody can be reached at it."""
    try:
        return host in ("", "*") or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_ipv6(host: str) -> bool:
    """Whether it is a literal IPv6 address, without brackets; it may have a zone (`fe80::1%eth0`)."""
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether `host` leads to the machine that uses it. Of names only `localhost` is known for that."""
    if host.rstrip(".").lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)


def _port(text: str, port: str | None, default_port: int | None) -> int:
    if port is None and default_port is not None:
        return default_port
    if not port:
        raise AddressError(f"{text!r} names no port: write {_FORM}")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= PORT_MAX):
        raise AddressError(f"{text!r}: a port is a number in 1..{PORT_MAX}, not {port!r}")
    return int(port)


def _refuse_url(text: str, default_port: int | None) -> None:
    scheme = _SCHEME.match(text)
    if not scheme:
        if "/" in text or "@" in text:
            raise AddressError(f"{text!r}: an address is {_FORM}, without path or user")
        return
    meant = text[scheme.end() :].split("/")[0].rpartition("@")[2] or "host:port"
    raise AddressError(f"{text!r}: an address has no {scheme.group()!r} and no path; write {meant!r}")


def _bare_ipv6(text: str, default_port: int | None) -> str:
    host, _, port = text.rpartition(":")
    if is_ipv6(host) and port.isascii() and port.isdigit():
        return f"{text!r}: write an IPv6 address in brackets, as [{host}]:{port}"
    if is_ipv6(text):
        return f"{text!r}: write an IPv6 address in brackets, and its port: [{text}]:{default_port or CONTROL_PORT}"
    return f"{text!r} has more than one colon: write {_FORM}"
