"""Settings of the client: where they are declared, and checked before anything is connected."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvstore_client.address import DIRECTORY_PORT, Address, AddressError
from kvstore_client.errors import ConfigError
from kvstore_client.options import (
    Option,
    Source,
    arguments,
    choice,
    environment,
    flag,
    integer,
    options_of,
    resolve,
    text,
)
from kvstore_client.protocol import NAME_BYTES_MAX, PIN_MS_MAX, REPLICAS_MAX, TOKEN_BYTES_MAX
from kvstore_client.suggestions import did_you_mean
from kvstore_client.tokens import engine_secret

MASTERS_MAX = 64
MASTERS_VARIABLE = "KVSTORE_MASTERS"
DEADLINE_MS_MAX = 600_000
_PATH_BYTES_MAX = 4096

MasterList = str | Sequence[str] | Sequence[tuple[str, int]]


@dataclass(frozen=True)
class ClientConfig:
    """Checked settings, from `ClientConfig.of(...)`. An argument beats the environment variable
    `KVSTORE_CLIENT_<NAME>`, and that the default; None and an empty text mean: not set.
    """

    masters: tuple[Address, ...]
    deadline_ms: int = integer(
        1000, 1, DEADLINE_MS_MAX, "ms", "no call takes longer; what is not done by then counts as a miss"
    )
    pin_ms: int = integer(
        0,
        0,
        PIN_MS_MAX,
        "ms",
        "how long what exists has promised is kept from eviction, so that a get finds it",
    )
    token: str = text(
        TOKEN_BYTES_MAX,
        "secret of the cluster; better token_file, which does not show up in a process list",
        is_secret=True,
    )
    token_file: str = text(
        _PATH_BYTES_MAX,
        "file that holds the cluster's secret; of lines with roles the one for engines counts",
        variable="KVSTORE_TOKEN_FILE",
    )
    name: str = text(NAME_BYTES_MAX, "what masters and segments call this client in their logs")
    same_host: bool = flag(True, "use shared memory for segments on the same host")
    tcp: bool = flag(True, "use TCP")
    rdma: str = choice(
        ("off", "auto", "required"),
        "RDMA through UCX: off; auto, for segments that offer it; required, no pages over TCP",
    )
    rdma_library: str = text(_PATH_BYTES_MAX, "path of libucp.so.0; empty: the system's")
    connections: int = integer(2, 1, 64, "", "TCP connections to each segment")
    copy_threads: int = integer(2, 1, 64, "", "threads that copy pages to and from shared memory")
    connect_timeout_ms: int = integer(
        250, 1, 60_000, "ms", "a peer that does not accept a connection by then counts as down for a while"
    )
    run_bytes: int = integer(
        4 << 20, 64 << 10, 1 << 30, "bytes", "a batch goes to a segment in runs of about so many bytes"
    )
    replicas: int = integer(
        1,
        1,
        REPLICAS_MAX,
        "",
        "copies of each object that puts ask for, on different hosts where there are such; one that is stored is enough "
        "for a put to have worked",
    )
    put_digests: bool = flag(
        False,
        "have segments on this host check what they copy out of registered memory against a digest of the writer's; "
        "costs one more pass over the bytes",
    )
    location_cache_entries: int = integer(
        262_144,
        0,
        1 << 24,
        "",
        "objects whose segment is remembered (32 bytes each), so that it is asked first, also while no master answers; "
        "0: none",
    )

    @classmethod
    def of(
        cls, masters: MasterList | None = None, *, environ: Mapping[str, str] = os.environ, **options: Any
    ) -> "ClientConfig":
        """Checks and converts. Unknown options are refused."""
        for option in options:
            if option not in CLIENT_OPTIONS:
                raise ConfigError(option, f"no such option{did_you_mean(option, CLIENT_OPTIONS)}")
        given = arguments({"masters": masters, **options})
        return cls.from_sources(CLIENT_OPTIONS, (given, environment_of_client(environ)))

    @classmethod
    def from_sources(cls, options: Mapping[str, Option], sources: Sequence[Source]) -> "ClientConfig":
        """The settings that the sources make, an earlier one first. `options`: those of this class, as they are
        here or with other bounds and defaults.
        """
        values = {name: option.default for name, option in options.items()}
        values |= resolve(options, sources)
        values["token"] = _token(options, sources)
        if not (values["same_host"] or values["tcp"] or values["rdma"] != "off"):
            raise ConfigError(
                "tcp", "same_host, tcp and rdma are all off: no transport is left; allow one of them"
            )
        return cls(masters=_masters(sources), **values)


CLIENT_OPTIONS: Mapping[str, Option] = options_of(ClientConfig)
"""All but the masters, which have a form of their own."""


def environment_of_client(environ: Mapping[str, str]) -> Source:
    """What the environment says. ConfigError for a variable that looks like one of the client's and is none."""
    source = environment(CLIENT_OPTIONS, environ)

    def origin(name: str) -> str:
        return f"environment variable {MASTERS_VARIABLE}" if name == "masters" else source.origin(name)

    return source._replace(values={**source.values, "masters": environ.get(MASTERS_VARIABLE)}, origin=origin)


def _masters(sources: Sequence[Source]) -> tuple[Address, ...]:
    for source in sources:
        if source.has("masters"):
            return parse_masters(source.values["masters"], source.origin("masters"))
    raise ConfigError(
        "masters",
        f'is not set; give "host:port,host:port" of the masters\' directory ports, or set {MASTERS_VARIABLE}',
    )


def _token(options: Mapping[str, Option], sources: Sequence[Source]) -> str:
    for source in sources:
        if source.has("token") and source.has("token_file"):
            raise ConfigError(
                "token_file", "is set together with token; keep one of them", source.origin("token_file")
            )
        if source.has("token"):
            return str(source.value_of(options["token"]))
        if source.has("token_file"):
            path = source.value_of(options["token_file"])
            origin = source.origin("token_file")
            try:
                return engine_secret(path)
            except ValueError as error:
                raise ConfigError("token_file", str(error), origin) from None
    return ""


def parse_masters(masters: MasterList, origin: str = "") -> tuple[Address, ...]:
    """`"host:port,[v6]:port"`, a list of such texts or of (host, port) -> addresses. ConfigError otherwise."""
    if isinstance(masters, str):
        parts: Sequence[str | tuple[str, int]] = [part for part in masters.split(",") if part.strip()]
    elif isinstance(masters, Sequence):
        parts = masters
    else:
        raise ConfigError("masters", f"needs 'host:port,host:port', not {masters!r}", origin)
    if not 0 < len(parts) <= MASTERS_MAX:
        problem = f"needs 1..{MASTERS_MAX} addresses 'host:port', not {len(parts)}"
        raise ConfigError("masters", problem, origin)
    try:
        return tuple(_parse_master(part) for part in parts)
    except AddressError as error:
        raise ConfigError("masters", str(error), origin) from None


def _parse_master(part: str | tuple[str, int]) -> Address:
    if isinstance(part, str):
        return Address.parse(part, DIRECTORY_PORT)
    if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str):
        return Address.of(*part)
    raise AddressError(f"{part!r} is not 'host:port'")


def clamp_deadline_ms(value: float | None, default_ms: int) -> int:
    """A call's deadline as the native side takes it; nonsense counts as already over."""
    if value is None:
        return default_ms
    if not isinstance(value, (int, float)) or math.isnan(value) or value <= 0:
        return 0
    return int(min(value, DEADLINE_MS_MAX))
