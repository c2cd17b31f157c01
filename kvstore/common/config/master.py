"""What a master can be told."""

from __future__ import annotations

from typing import Any, ClassVar, Literal
from urllib.parse import quote

from pydantic import field_validator, model_validator

from kvstore.common.config.schema import setting, shown_state_directory, state_directory
from kvstore.common.config.servers import MASTER_HTTP_PORT, ListenHost, PeerHost, Port, ServerSettings
from kvstore.common.sizes import format_size, parse_size
from kvstore_client.address import CONTROL_PORT, DIRECTORY_PORT, is_wildcard

METADATA_SCHEMES = ("etcd", "memory", "rocksdb")
"""The kinds of metadata stores; `kvstore.master.metadata.registry` makes them."""
BEATS_MISSED_MIN = 2
"""Heartbeats that may be late before a segment is suspect: with fewer, ordinary jitter makes all of them so."""

COPY_RATE_MIN = 1 << 20
"""Below this a segment's worth of pages would take days."""


class MasterSettings(ServerSettings):
    section: ClassVar[str] = "master"

    host: ListenHost = setting(
        "127.0.0.1", "Address that all three ports listen on; 0.0.0.0 for all.", group="Addresses"
    )
    advertise_host: PeerHost = setting(
        "",
        "Address at which the other masters and the segments reach this one; without it --host, or if that is 0.0.0.0 the "
        "address of the interface that leads out of this machine. Several masters with --host 0.0.0.0 need it.",
        group="Addresses",
    )
    directory_port: Port = setting(
        DIRECTORY_PORT,
        "Port for clients, and for what segments journal; 0 picks a free one.",
        group="Addresses",
    )
    advertise_directory_port: Port = setting(
        0,
        "Port that segments reach the directory port at, on the host of the control port, where something in between maps "
        "it; 0: the directory port.",
        group="Addresses",
    )
    control_port: Port = setting(
        CONTROL_PORT, "Port for segments and tools (gRPC); 0 picks a free one.", group="Addresses"
    )
    http_port: Port = setting(
        MASTER_HTTP_PORT, "Port of /metrics, /healthz and /readyz; 0 picks a free one.", group="Addresses"
    )
    metadata: str = setting(
        None,
        "Where the directory is durable: rocksdb:///path for one master, etcd://host,host,host/prefix for several "
        "(docs/etcd.md).",
        group="Directory",
        kind="URL",
        shown_default=f"rocksdb://{shown_state_directory('master')}",
    )
    recovery_s: float = setting(
        10.0,
        "How long pages are served after a start before their segment attaches.",
        group="Directory",
        ge=0,
        le=86_400,
    )
    standby_reads_s: float = setting(
        600.0,
        "How long a standby that is cut off from etcd goes on to answer reads; it does not learn what is cleared meanwhile, "
        "and `kvstore admin clear --wait` waits for it so long at most.",
        group="Directory",
        ge=5,
        le=86_400,
    )
    compaction_factor: float = setting(
        2.0,
        "A segment's log is rewritten at this multiple of its live entries.",
        group="Directory",
        ge=1.1,
        le=100,
    )
    compaction_floor_entries: int = setting(
        65_536, "Logs with fewer entries are not rewritten.", group="Directory", ge=1, le=1 << 30
    )
    heartbeat_interval_ms: int = setting(
        1000, "How often segments send a heartbeat.", group="Segments", ge=50, le=60_000
    )
    heartbeat_timeout_s: float = setting(
        10.0, "Silence that makes a segment suspect.", group="Segments", gt=0, le=86_400
    )
    grace_s: float = setting(
        600.0,
        "How long a silent segment's pages are kept before they are forgotten.",
        group="Segments",
        gt=0,
        le=30 * 86_400,
    )
    placement_policy: Literal["host-first"] = setting(
        "host-first",
        "Where new pages go; 'host-first': to the segment on the writer's host until it is 85 % full or evicts, then to the "
        "emptier of two drawn at random.",
        group="Placement",
    )
    placement_run_bytes: int = setting(
        4 << 20,
        "A batch is striped over segments in runs of about this size.",
        group="Placement",
        ge=1,
        le=1 << 40,
    )
    copy_rate: str = setting(
        "256MiB",
        "Most that copies from segment to segment (a drain's, say) move into one segment a second, as 256MiB; 0: as fast as it goes.",
        group="Copies",
        kind="size",
    )
    connections_max: int = setting(
        16_384,
        "Most client connections at a time; every rank of every engine has one at least. Fewer where the limit of open files "
        "does not allow so many.",
        group="Limits",
        ge=1,
        le=1 << 20,
    )
    segments_max: int = setting(4096, "Most segments, suspect ones too.", group="Limits", ge=1, le=1 << 20)
    namespaces_max: int = setting(65_536, "Most namespaces.", group="Limits", ge=1, le=1 << 24)
    namespace_unused_s: float = setting(
        7 * 86_400.0,
        "A namespace that holds nothing and that nobody has asked for so long is forgotten; 0: never. It begins anew when "
        "another master leads.",
        group="Limits",
        ge=0,
        le=366 * 86_400,
    )

    @field_validator("metadata", mode="before")
    @classmethod
    def _in_the_state_directory(cls, value: Any) -> Any:
        return f"rocksdb://{quote(str(state_directory('master')))}" if value is None else value

    @field_validator("metadata")
    @classmethod
    def _check_metadata(cls, value: str) -> str:
        scheme, colon, rest = value.partition(":")
        if not colon or scheme not in METADATA_SCHEMES:
            raise ValueError(
                f"{value!r} names no kind of store: rocksdb:///DIRECTORY or etcd://HOST,HOST,HOST"
            )
        if scheme == "etcd" and not rest.strip("/"):
            raise ValueError(f"{value!r} names no etcd: etcd://HOST,HOST,HOST")
        return value

    @field_validator("copy_rate")
    @classmethod
    def _check_copy_rate(cls, value: str) -> str:
        if 0 < parse_size(value) < COPY_RATE_MIN:
            raise ValueError(f"copy_rate is 0 or at least {format_size(COPY_RATE_MIN)}, not {value}")
        return value

    @model_validator(mode="after")
    def _check_heartbeats(self) -> MasterSettings:
        if self.heartbeat_timeout_s * 1000 < BEATS_MISSED_MIN * self.heartbeat_interval_ms:
            raise ValueError(
                f"heartbeat_timeout_s ({self.heartbeat_timeout_s:g}) must be at least {BEATS_MISSED_MIN} times "
                f"heartbeat_interval_ms ({self.heartbeat_interval_ms})"
            )
        return self

    @model_validator(mode="after")
    def _check_ports(self) -> MasterSettings:
        ports = [port for port in (self.directory_port, self.control_port, self.http_port) if port > 0]
        if len(set(ports)) < len(ports):
            raise ValueError(
                f"directory_port ({self.directory_port}), control_port ({self.control_port}) and http_port "
                f"({self.http_port}) must differ"
            )
        return self

    @model_validator(mode="after")
    def _reachable(self) -> MasterSettings:
        several = self.metadata.startswith("etcd:")
        if several and not self.advertise_host and is_wildcard(self.host):
            raise ValueError(
                f"several masters reach each other by name: with host {self.host} set advertise_host as well"
            )
        return self
