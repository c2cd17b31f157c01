"""Settings of the client, checked before anything is connected."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvstore_client.address import DIRECTORY_PORT, Address, AddressError
from kvstore_client.errors import ConfigError
from kvstore_client.protocol import NAME_BYTES_MAX, PIN_MS_MAX, TOKEN_BYTES_MAX

MASTERS_MAX = 64
PATH_BYTES_MAX = 4096
RDMA_MODES = ("off", "auto", "required")
_DEADLINE_MS_MAX = 600_000

MasterList = str | Sequence[str] | Sequence[tuple[str, int]]


@dataclass(frozen=True)
class ClientConfig:
    """Validated settings. Build it with `ClientConfig.of(...)`, which raises ConfigError naming the
    option.
    """

    masters: tuple[Address, ...]
    deadline_ms: int = 1000
    pin_ms: int = 0
    token: str = ""
    name: str = ""
    connections: int = 2
    copy_threads: int = 2
    same_host: bool = True
    tcp: bool = True
    connect_timeout_ms: int = 250
    run_bytes: int = 4_194_304
    location_cache_entries: int = 65_536
    rdma: str = "off"
    rdma_library: str = ""

    @classmethod
    def of(cls, masters: MasterList, **options: object) -> "ClientConfig":
        """Checks and converts. Unknown options are refused."""
        known = set(cls.__dataclass_fields__) - {"masters"}
        for option in options:
            if option not in known:
                raise ConfigError(option, f"no such option; there are {', '.join(sorted(known))}")
        config = cls(masters=parse_masters(masters), **options)  # type: ignore[arg-type]
        config._check()
        return config

    def _check(self) -> None:
        check_int("deadline_ms", self.deadline_ms, 1, _DEADLINE_MS_MAX)
        check_int("pin_ms", self.pin_ms, 0, PIN_MS_MAX)
        check_int("connections", self.connections, 1, 64)
        check_int("copy_threads", self.copy_threads, 1, 64)
        check_int("connect_timeout_ms", self.connect_timeout_ms, 1, 60_000)
        check_int("run_bytes", self.run_bytes, 65_536, 1 << 30)
        check_int("location_cache_entries", self.location_cache_entries, 0, 1 << 26)
        check_bool("same_host", self.same_host)
        check_bool("tcp", self.tcp)
        check_choice("rdma", self.rdma, RDMA_MODES)
        check_text("rdma_library", self.rdma_library, PATH_BYTES_MAX)
        check_text("token", self.token, TOKEN_BYTES_MAX)
        check_text("name", self.name, NAME_BYTES_MAX)
        if not (self.same_host or self.tcp or self.rdma != "off"):
            raise ConfigError(
                "tcp", "same_host, tcp and rdma are all off: no transport is left; allow one of them"
            )


def parse_masters(masters: MasterList) -> tuple[Address, ...]:
    """`"host:port,[v6]:port"`, a list of such texts or of (host, port) -> addresses. ConfigError otherwise."""
    if isinstance(masters, str):
        parts: Sequence[str | tuple[str, int]] = [part for part in masters.split(",") if part.strip()]
    elif isinstance(masters, Sequence):
        parts = masters
    else:
        raise ConfigError("masters", f"needs 'host:port,host:port', not {masters!r}")
    if not 0 < len(parts) <= MASTERS_MAX:
        raise ConfigError("masters", f"needs 1..{MASTERS_MAX} addresses 'host:port', not {len(parts)}")
    try:
        return tuple(_parse_master(part) for part in parts)
    except AddressError as error:
        raise ConfigError("masters", str(error)) from None


def _parse_master(part: str | tuple[str, int]) -> Address:
    if isinstance(part, str):
        return Address.parse(part, DIRECTORY_PORT)
    if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str):
        return Address.of(*part)
    raise AddressError(f"{part!r} is not 'host:port'")


def check_int(option: str, value: object, low: int, high: int) -> int:
    """`value` if it is an int in low..high."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(option, f"needs an integer in {low}..{high}, not {value!r}")
    return value


def check_bool(option: str, value: object) -> bool:
    """`value` if it is a bool."""
    if not isinstance(value, bool):
        raise ConfigError(option, f"needs true or false, not {value!r}")
    return value


def check_choice(option: str, value: object, choices: Sequence[str]) -> str:
    """`value` if it is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(option, f"is one of {', '.join(choices)}, not {value!r}")
    return value


def check_text(option: str, value: object, bytes_max: int) -> str:
    """`value` if it is a str of at most bytes_max bytes of UTF-8."""
    if not isinstance(value, str):
        raise ConfigError(option, f"needs a text, not {type(value).__name__}")  # never print a token
    if len(value.encode()) > bytes_max:
        raise ConfigError(option, f"has {len(value.encode())} bytes, the limit is {bytes_max}")
    return value


def clamp_deadline_ms(value: float | None, default_ms: int) -> int:
    """A call's deadline as the native side takes it; nonsense counts as already over."""
    if value is None:
        return default_ms
    if not isinstance(value, (int, float)) or math.isnan(value) or value <= 0:
        return 0
    return int(min(value, _DEADLINE_MS_MAX))
