"""Settings of a segment: environment `KVSTORE_SEGMENT_<NAME>`, or the options of `kvstore segment`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from kvstore.common.capacity import CAPACITY_BYTES_MIN
from kvstore.common.settings import ServerSettings
from kvstore.common.sizes import format_size, parse_size
from kvstore_client.address import CONTROL_PORT, check_listen_host, check_peer_host, parse_addresses

DATA_PORT = 7450
HTTP_PORT = 7451
MASTERS_MAX = 64


class SegmentSettings(ServerSettings):
    """Everything a segment can be told.

    Each field is one environment variable and one command line option.
    """

    model_config = SettingsConfigDict(env_prefix="KVSTORE_SEGMENT_")

    masters: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(f"127.0.0.1:{CONTROL_PORT}",),
        description="Control addresses of the masters, host:port, separated by commas.",
    )
    capacity: str = Field(
        default="auto",
        description="Memory of the page pool, e.g. 8GiB; 'auto' takes a quarter of the memory that is "
        "available.",
    )
    host: str = Field(default="127.0.0.1", description="Address the data port listens on; 0.0.0.0 for all.")
    port: int = Field(default=DATA_PORT, ge=0, le=65535, description="Data port; 0 picks a free one.")
    advertise_host: str = Field(
        default="",
        description="Address that clients reach this segment at; empty: the host it listens on, or, if that is 0.0.0.0, "
        "the address of the interface that leads to the master or out of this machine, never a loopback one.",
    )
    advertise_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port that clients reach this segment at, where something in between maps it; 0: the "
        "data port.",
    )
    unix_path: str = Field(
        default="auto",
        description="Unix socket for clients on this host; 'auto' for a private path of this segment, 'off' "
        "for none.",
    )
    data_dir: Path = Field(
        default_factory=lambda: default_data_dir() / "segment",
        description="Directory that keeps the segment's id; one for each segment.",
    )
    high_watermark: float = Field(
        default=0.95, gt=0.0, le=1.0, description="Share of the pool in use at which eviction begins."
    )
    low_watermark: float = Field(
        default=0.90, gt=0.0, le=1.0, description="Share of the pool in use at which eviction ends."
    )
    eviction_policy: str = Field(default="lru", description="Which objects go first when the pool is full.")
    pinned_fraction_max: float = Field(
        default=0.5, ge=0.0, le=1.0, description="Largest share of the pool that pins may hold."
    )
    object_bytes_min: int = Field(
        default=8192,
        ge=64,
        description="Expected smallest object in bytes: fixes how many slots the pool's table has.",
    )
    lock_memory: bool = Field(
        default=False, description="Lock the pool in memory (mlock); needs RLIMIT_MEMLOCK."
    )
    connections_max: int = Field(
        default=1024, ge=1, le=65536, description="Most client connections at a time."
    )
    rdma: Literal["off", "auto", "required"] = Field(
        default="off",
        description="Offer the pool by RDMA through UCX (experimental): 'auto' where it works, 'required' or "
        "not start.",
    )
    rdma_library: str = Field(
        default="", description="Path of UCX's libucp.so.0; empty: the system's, by that name."
    )
    rdma_sessions_max: int = Field(
        default=256, ge=1, le=65536, description="Most client connections with RDMA at a time."
    )
    http_host: str = Field(default="127.0.0.1", description="Address of /metrics, /healthz and /readyz.")
    http_port: int = Field(
        default=HTTP_PORT,
        ge=-1,
        le=65535,
        description="Port of the same; 0 picks a free one, -1 turns it off.",
    )

    @field_validator("masters", mode="before")
    @classmethod
    def _parse_masters(cls, value: str | tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(str, parse_addresses(value, MASTERS_MAX, CONTROL_PORT)))

    @field_validator("host", "http_host")
    @classmethod
    def _listen_host(cls, value: str) -> str:
        return check_listen_host(value)

    @field_validator("advertise_host")
    @classmethod
    def _advertise_host(cls, value: str) -> str:
        return check_peer_host(value) if value else value

    @field_validator("capacity")
    @classmethod
    def _check_capacity(cls, value: str) -> str:
        if value != "auto" and parse_size(value) < CAPACITY_BYTES_MIN:
            raise ValueError(f"the smallest pool is {format_size(CAPACITY_BYTES_MIN)}, not {value}")
        return value

    @model_validator(mode="after")
    def _check_watermarks(self) -> SegmentSettings:
        if self.low_watermark > self.high_watermark:
            raise ValueError(
                f"low_watermark ({self.low_watermark}) must not exceed high_watermark ({self.high_watermark})"
            )
        return self


def default_data_dir() -> Path:
    """Where kvstore keeps state unless told otherwise: `$XDG_STATE_HOME/kvstore` or
    `~/.local/state/kvstore`.
    """
    state_home = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state_home) if state_home else Path.home() / ".local" / "state") / "kvstore"
