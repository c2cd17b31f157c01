"""What `kvstore up` can be told: a choice for both servers that it starts. What it leaves out, they have by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import field_validator

from kvstore.common.capacity import check_capacity
from kvstore.common.config.memory import check_pool_path
from kvstore.common.config.schema import Settings, setting, shown_state_directory, state_directory
from kvstore.common.config.servers import (
    DATA_PORT,
    MASTER_HTTP_PORT,
    SEGMENT_HTTP_PORT,
    ListenHost,
    LogLevel,
    PeerHost,
    Port,
)
from kvstore_client.address import CONTROL_PORT, DIRECTORY_PORT


class UpSettings(Settings):
    section: ClassVar[str] = "up"

    size: str = setting(
        "auto",
        "Memory for pages, as 8GiB; 'auto' takes a quarter of what is available.",
        kind="size|auto",
    )
    pool_path: str = setting(
        "off",
        "File in memory that the pages are in, so that they outlive this command and keep their memory when it ends; 'auto' for one "
        "in /dev/shm if it fits there, 'off' for memory that ends with it.",
        kind="path|auto|off",
    )
    data_dir: Path = setting(
        None,
        "Where the directory's records live, and the segment's id.",
        shown_default=shown_state_directory(""),
    )
    token_file: Path | None = setting(
        None,
        "File with the secret that every peer must present; without it none is asked for.",
        kind="path",
        also=("KVSTORE_TOKEN_FILE",),
    )
    log_level: LogLevel = setting("warning", "Which lines of both servers go to stderr.")
    host: ListenHost = setting("127.0.0.1", "Address to listen on; 0.0.0.0 for all.", group="Addresses")
    advertise_host: PeerHost = setting(
        "",
        "Address that clients and segments elsewhere reach this machine at; without it --host, or if that is 0.0.0.0 "
        "the address of the interface that leads out of this machine.",
        group="Addresses",
    )
    directory_port: Port = setting(
        DIRECTORY_PORT, "Directory port, the one that SGLang needs; 0 picks a free one.", group="Addresses"
    )
    control_port: Port = setting(
        CONTROL_PORT, "Control port, for further segments; 0 picks a free one.", group="Addresses"
    )
    data_port: Port = setting(DATA_PORT, "Data port of the segment; 0 picks a free one.", group="Addresses")
    http_port: int = setting(
        SEGMENT_HTTP_PORT,
        "The segment's /metrics; 0 picks a free one, -1 turns it off.",
        group="Addresses",
        ge=-1,
        le=65_535,
    )
    master_http_port: Port = setting(
        MASTER_HTTP_PORT, "The master's /metrics; 0 picks a free one.", group="Addresses"
    )

    @field_validator("size")
    @classmethod
    def _check_size(cls, value: str) -> str:
        return check_capacity(value)

    @field_validator("pool_path")
    @classmethod
    def _check_pool_path(cls, value: str) -> str:
        return check_pool_path(value)

    @field_validator("data_dir", mode="before")
    @classmethod
    def _in_the_state_directory(cls, value: Any) -> Any:
        return state_directory("") if value is None else value
