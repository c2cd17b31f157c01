"""`etcd://host:port,host:port,.../prefix?option=value`: where etcd is, and how it is used."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from urllib.parse import parse_qsl

from kvstore.common.errors import StoreError
from kvstore_client.address import Address, AddressError

DEFAULT_PORT = 2379
ENDPOINTS_MAX = 16
PREFIX_BYTES_MAX = 128
_URI_FORM = re.compile(r"etcd://(?P<endpoints>[^/?#]*)(?P<path>/[^?#]*)?(\?(?P<query>[^#]*))?")
_PREFIX_FORM = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


@dataclass(frozen=True)
class EtcdOptions:
    endpoints: tuple[str, ...]
    # Everything of this cluster lies under it; clusters that share an etcd have different ones.
    prefix: str = "kvstore"
    # How long a leader that is not heard of keeps the leadership. etcd raises it to 1.5 x its election time-out.
    ttl_s: float = 3.0
    # --quota-backend-bytes of the etcd servers, which they do not tell.
    quota_bytes: int = 2 << 30
    # Past revisions are dropped after so long; 0 leaves that to etcd's own auto-compaction.
    compact_period_s: float = 60.0
    # The leader defragments etcd's members when that pays, at most so often; 0 leaves it to the operator.
    defrag_period_s: float = 600.0
    commit_timeout_s: float = 5.0

    @property
    def key_prefix(self) -> bytes:
        return f"/{self.prefix}/".encode()


_RANGES = {
    "ttl_s": (1.0, 60.0),
    "quota_bytes": (16 << 20, 1 << 40),
    "compact_period_s": (0.0, 86_400.0),
    "defrag_period_s": (0.0, 86_400.0),
    "commit_timeout_s": (0.5, 60.0),
}


def parse_uri(uri: str) -> EtcdOptions:
    """StoreError says what is wrong with the URI."""
    # Not urlsplit: it takes what stands between the slashes for one host, and knows one pair of brackets there.
    parts = _URI_FORM.fullmatch(uri)
    if parts is None:
        raise StoreError(f"{uri!r}: write it as etcd://host:port,host:port/prefix")
    named = parts["endpoints"].split(",")
    try:
        endpoints = tuple(str(Address.parse(text, DEFAULT_PORT)) for text in named)
    except AddressError as error:
        raise StoreError(f"{uri!r}: {error}; write it as etcd://host:port,host:port/prefix") from None
    if len(endpoints) > ENDPOINTS_MAX or len(set(endpoints)) != len(endpoints):
        raise StoreError(f"{uri!r}: name 1 to {ENDPOINTS_MAX} different endpoints")
    prefix = (parts["path"] or "").strip("/") or EtcdOptions.prefix
    if len(prefix) > PREFIX_BYTES_MAX or not _PREFIX_FORM.fullmatch(prefix):
        raise StoreError(
            f"{uri!r}: the prefix has letters, digits, '.', '_', '-' and single '/', and at most "
            f"{PREFIX_BYTES_MAX} of them"
        )
    values: dict[str, float | int] = {}
    for name, text in parse_qsl(parts["query"] or "", keep_blank_values=True):
        if name not in _RANGES:
            raise StoreError(f"{uri!r}: no option {name!r}; there are {', '.join(sorted(_RANGES))}")
        values[name] = _number(uri, name, text)
    return EtcdOptions(endpoints, prefix, **values)  # type: ignore[arg-type]


def _number(uri: str, name: str, text: str) -> float | int:
    kind = int if name.endswith("_bytes") else float
    low, high = _RANGES[name]
    try:
        value = kind(text)
    except ValueError:
        value = kind(-1)
    if not low <= value <= high:
        raise StoreError(f"{uri!r}: {name} is a number from {low:g} to {high:g}, not {text!r}")
    return value


assert set(_RANGES) <= {field.name for field in fields(EtcdOptions)}
