"""Settings of the master: environment KVSTORE_MASTER_<NAME>, or arguments."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from kvstore.common.settings import ServerSettings
from kvstore.master.state.directory_state import StateLimits
from kvstore.master.state.membership import MembershipLimits
from kvstore.master.state.placement import POLICIES
from kvstore.master.state.segment_logs import LogLimits
from kvstore_client.address import (
    CONTROL_PORT,
    DIRECTORY_PORT,
    check_listen_host,
    check_peer_host,
    is_wildcard,
)


def _default_metadata() -> str:
    return f"rocksdb://{Path.home() / '.local/state/kvstore/master'}"


class MasterSettings(ServerSettings):
    model_config = SettingsConfigDict(env_prefix="KVSTORE_MASTER_", extra="forbid", frozen=True)

    host: str = Field(default="127.0.0.1", description="Address that all three ports listen on.")
    advertise_host: str = Field(
        default="",
        description="Address at which the other masters and the segments reach this one; empty: host.",
    )
    directory_port: int = Field(
        default=DIRECTORY_PORT, ge=0, le=65_535, description="Clients; 0 takes a free port."
    )
    control_port: int = Field(default=CONTROL_PORT, ge=0, le=65_535, description="Segments and tools (gRPC).")
    http_port: int = Field(default=7442, ge=0, le=65_535, description="/metrics, /healthz, /readyz.")
    metadata: str = Field(
        default_factory=_default_metadata,
        description="Where the directory is durable: rocksdb:///path for one master, "
        "etcd://host,host,host/prefix for several (docs/etcd.md).",
    )
    connections_max: int = Field(default=4096, ge=1, description="Open client connections.")
    segments_max: int = Field(default=4096, ge=1, description="Segments, suspect ones too.")
    namespaces_max: int = Field(default=65_536, ge=1)
    grace_s: float = Field(
        default=600.0,
        gt=0,
        description="How long a silent segment's pages are kept before they are forgotten.",
    )
    heartbeat_interval_ms: int = Field(default=1000, ge=50, description="Asked of segments.")
    heartbeat_timeout_s: float = Field(
        default=10.0, gt=0, description="Silence that makes a segment suspect."
    )
    recovery_s: float = Field(
        default=10.0,
        ge=0,
        description="How long pages are served after a start before their segment attaches.",
    )
    placement_policy: str = Field(default="host-first", description="How segments are chosen for new pages.")
    placement_run_bytes: int = Field(
        default=4 << 20, ge=1, description="A batch is striped over segments in runs of about this size."
    )
    compaction_factor: float = Field(
        default=2.0, ge=1.1, description="A segment's log is rewritten at this multiple of its live entries."
    )
    compaction_floor_entries: int = Field(default=65_536, ge=1)

    @field_validator("host")
    @classmethod
    def _listen_host(cls, host: str) -> str:
        return check_listen_host(host)

    @field_validator("advertise_host")
    @classmethod
    def _advertise_host(cls, host: str) -> str:
        return check_peer_host(host) if host else host

    @field_validator("placement_policy")
    @classmethod
    def _known_policy(cls, name: str) -> str:
        if name not in POLICIES:
            raise ValueError(f"unknown placement policy {name!r}: use one of {', '.join(sorted(POLICIES))}")
        return name

    @model_validator(mode="after")
    def _reachable(self) -> MasterSettings:
        several = self.metadata.startswith("etcd:")
        if several and not self.advertise_host and is_wildcard(self.host):
            raise ValueError(
                f"several masters reach each other by name: with host {self.host} set advertise_host as well"
            )
        return self

    @property
    def limits(self) -> StateLimits:
        return StateLimits(
            membership=MembershipLimits(
                self.grace_s,
                self.heartbeat_timeout_s,
                streamless_timeout_s=min(2.5 * self.heartbeat_interval_ms / 1000, self.heartbeat_timeout_s),
                segments_max=self.segments_max,
            ),
            log=LogLimits(self.compaction_factor, self.compaction_floor_entries),
            namespaces_max=self.namespaces_max,
            recovery_s=self.recovery_s,
        )
