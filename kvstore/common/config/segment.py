"""What a segment can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ValidationInfo, field_validator

from kvstore.common.capacity import check_capacity
from kvstore.common.config.memory import check_pool_path, parse_nodes
from kvstore.common.config.schema import setting, shown_state_directory, state_directory
from kvstore.common.config.servers import (
    DATA_PORT,
    SEGMENT_HTTP_PORT,
    ControlAddresses,
    ListenHost,
    PeerHost,
    Port,
    ServerSettings,
)
from kvstore.common.sizes import format_size, parse_size
from kvstore_client.address import CONTROL_PORT

LIMIT_BYTES_MIN = 1 << 20
LIMIT_BYTES_MAX = 1 << 50
DISK_BYTES_MIN = 4 << 20


class SegmentSettings(ServerSettings):
    section: ClassVar[str] = "segment"

    masters: ControlAddresses = setting(
        (f"127.0.0.1:{CONTROL_PORT}",),
        "Control addresses of the masters, host:port, separated by commas.",
        group="Addresses",
        kind="addresses",
    )
    adopt_cluster: bool = setting(
        False,
        "Join a master of another cluster than that of this segment's pages, with an empty pool; without it such a master is "
        "passed over, and the pages are kept.",
        group="Addresses",
    )
    on_term: Literal["keep", "drain"] = setting(
        "keep",
        "What SIGTERM does: 'keep' stops at once, and leaves the pages in the pool's file if it has one; 'drain' has other segments "
        "copy them first, until a second SIGTERM.",
        group="Stopping",
    )
    drain_timeout_s: float = setting(
        300.0,
        "How long SIGTERM waits for its drain; what is not moved by then is lost.",
        group="Stopping",
        ge=1,
        le=86_400,
    )
    host: ListenHost = setting(
        "127.0.0.1", "Address that the data port listens on; 0.0.0.0 for all.", group="Addresses"
    )
    port: Port = setting(DATA_PORT, "Data port; 0 picks a free one.", group="Addresses")
    advertise_host: PeerHost = setting(
        "",
        "Address that clients reach this segment at; without it --host, or if that is 0.0.0.0 the address of the "
        "interface that leads to the master or out of this machine, never a loopback one.",
        group="Addresses",
    )
    advertise_port: Port = setting(
        0,
        "Port that clients reach this segment at, where something in between maps it; 0: the data port.",
        group="Addresses",
    )
    unix_path: str = setting(
        "auto",
        "Unix socket for clients on this host; 'auto' for a private path of this segment, 'off' for none.",
        group="Addresses",
        kind="path|auto|off",
    )
    http_host: ListenHost = setting(
        "127.0.0.1", "Address of /metrics, /healthz and /readyz.", group="Addresses"
    )
    http_port: int = setting(
        SEGMENT_HTTP_PORT,
        "Port of the same; 0 picks a free one, -1 turns it off.",
        group="Addresses",
        ge=-1,
        le=65_535,
    )
    capacity: str = setting(
        "auto",
        "Memory of the page pool, as 8GiB; 'auto' takes a quarter of what is available. Allocated and touched at start.",
        group="Pool",
        kind="size|auto",
    )
    pool_path: str = setting(
        "auto",
        "File in memory that the pool is, so that its pages outlive this process; 'auto' for one of this segment in /dev/shm, or "
        "/dev/hugepages, if it fits there; 'off' for memory that ends with the process.",
        group="Pool",
        kind="path|auto|off",
    )
    empty_pool: bool = setting(
        False,
        "Begin with an empty pool, whatever an earlier process has left in its file; for one start, on the command line.",
        group="Pool",
    )
    verify_pool: bool = setting(
        True,
        "Compare each page that an earlier process has left with its digest before it is served again; without it a start reads "
        "the pages' headers only, and a page that went bad meanwhile is found when it is read.",
        group="Pool",
    )
    huge_pages: Literal["off", "thp", "2MiB", "1GiB"] = setting(
        "thp",
        "Pages that the pool is made of: 'thp' huge ones as far as the kernel has them, 2MiB or 1GiB those that were set aside, or "
        "not start.",
        group="Pool",
    )
    numa_nodes: str = setting(
        "",
        "NUMA nodes that the pool's memory is taken from, as 0 or 0,1; without it from wherever the kernel takes it.",
        group="Pool",
        kind="nodes",
    )
    lock_memory: bool = setting(False, "Lock the pool in memory (mlock); needs RLIMIT_MEMLOCK.", group="Pool")
    data_dir: Path = setting(
        None,
        "Directory that keeps the segment's id; one for each segment.",
        group="Pool",
        shown_default=shown_state_directory("segment"),
    )
    eviction_policy: Literal["adaptive", "interval", "lrfu", "2q", "lru"] = setting(
        "adaptive",
        "Which objects go first when the pool is full: 'adaptive' chooses among rankings while it runs, by what"
        " each of them would have hit; the others stay what they are.",
        group="Eviction",
    )
    pinned_fraction_max: float = setting(
        0.5, "Largest share of the pool that pins may hold.", group="Eviction", ge=0.0, le=1.0
    )
    retained_fraction_max: float = setting(
        0.10,
        "Largest share of the pool that clients and operators may have retained; what is over it is a hint to eviction.",
        group="Eviction",
        ge=0.0,
        le=1.0,
    )
    retained_namespace_fraction_max: float = setting(
        0.05,
        "Largest share of the pool that one namespace may have retained.",
        group="Eviction",
        ge=0.0,
        le=1.0,
    )
    disk_path: str = setting(
        "off",
        "File of the disk tier, on a local SSD: pages that were used repeatedly are written there too, and read from there when "
        "memory has them no more. 'off' for none.",
        group="Disk",
        kind="path|off",
    )
    disk_capacity: str = setting(
        "64GiB",
        "Size of that file, made and preallocated at start; a file of another size is begun anew.",
        group="Disk",
        kind="size",
    )
    disk_threads: int = setting(4, "Threads that read the disk.", group="Disk", ge=1, le=64)
    disk_admit_uses: int = setting(
        2,
        "How often a page must have been put or read to be written to disk; 1: every page is.",
        group="Disk",
        ge=1,
        le=15,
    )
    disk_promote_hits: int = setting(
        2,
        "How often a page must have been read from disk to be put into memory again. Clients that read the pool itself, on this host "
        "or by RDMA, find every page there.",
        group="Disk",
        ge=1,
        le=1000,
    )
    disk_wait_ms: int = setting(
        1000,
        "Longest that a get waits for the disk; a client with less time left waits less. What has not come then is a miss.",
        group="Disk",
        ge=1,
        le=60_000,
    )
    disk_slow_ms: int = setting(
        1000,
        "A read or write of the disk that takes longer raises the alarm: until the disk is well again it is not used.",
        group="Disk",
        ge=10,
        le=60_000,
    )
    disk_buffers_max: str = setting(
        "256MiB",
        "Most memory of reads of the disk under way, and of what was read and is being sent.",
        group="Disk",
        kind="size",
    )
    rdma: Literal["off", "auto", "required"] = setting(
        "off",
        "Offer the pool by RDMA through UCX (experimental): 'auto' where it works, 'required' or not start.",
        group="RDMA",
    )
    rdma_library: str = setting(
        "", "Path of UCX's libucp.so.0; without it the system's, by that name.", group="RDMA", kind="path"
    )
    rdma_sessions_max: int = setting(
        256,
        "Most client connections with RDMA at a time; further ones go over TCP.",
        group="RDMA",
        ge=1,
        le=65_536,
    )
    writing_max: str = setting(
        "auto",
        "Most memory of the pool that puts under way may have reserved, as 4GiB; 'auto': a quarter of the pool, 64 MiB at "
        "least. No object can be larger than three quarters of this.",
        group="Limits",
        kind="size|auto",
    )
    held_max: str = setting(
        "auto",
        "Most memory of the pool that readers may keep from reuse while they copy; 'auto' as above.",
        group="Limits",
        kind="size|auto",
    )
    registered_max: str = setting(
        "auto",
        "Most memory of clients on this host that is mapped here, which costs page tables, 2 MiB a GiB; 'auto': eight times "
        "the pool, 64 GiB at least. What is over it is read in a slower way.",
        group="Limits",
        kind="size|auto",
    )
    registered_buffers_max: int = setting(
        4096,
        "Most pieces of memory that clients on this host have registered, a descriptor each. Fewer where the limit of open files "
        "does not allow so many.",
        group="Limits",
        ge=1,
        le=1 << 20,
    )
    request_bodies_max: str = setting(
        "256MiB",
        "Most memory that request bodies of over 64 KiB take at a time.",
        group="Limits",
        kind="size",
    )
    session_share_max: float = setting(
        0.5,
        "Largest share of what pins, puts, readers and registered memory may have that one connection may have.",
        group="Limits",
        gt=0.0,
        le=1.0,
    )
    stall_timeout_ms: int = setting(
        2000,
        "A connection that a put or get has pages reserved for is closed when no byte has passed for so long.",
        group="Limits",
        ge=250,
        le=600_000,
    )
    ungreeted_max: int = setting(
        256,
        "Most connections, of TCP and of the unix socket each, that have not said HELLO yet; the oldest makes room for the next. "
        "Fewer where the limit of open files does not allow so many.",
        group="Limits",
        ge=8,
        le=65_536,
    )
    connections_max: int = setting(
        1024,
        "Most client connections at a time. Fewer where the limit of open files does not allow so many.",
        group="Limits",
        ge=1,
        le=65_536,
    )

    @field_validator("capacity")
    @classmethod
    def _check_capacity(cls, value: str) -> str:
        return check_capacity(value)

    @field_validator("pool_path")
    @classmethod
    def _check_pool_path(cls, value: str) -> str:
        return check_pool_path(value)

    @field_validator("numa_nodes")
    @classmethod
    def _check_numa_nodes(cls, value: str) -> str:
        parse_nodes(value)
        return value

    @field_validator("writing_max", "held_max", "registered_max", "request_bodies_max")
    @classmethod
    def _check_limit(cls, value: str, field: ValidationInfo) -> str:
        if value != "auto" or field.field_name == "request_bodies_max":
            limit_bytes = parse_size(value)
            if not LIMIT_BYTES_MIN <= limit_bytes <= LIMIT_BYTES_MAX:
                raise ValueError(
                    f"a limit has {format_size(LIMIT_BYTES_MIN)} to {format_size(LIMIT_BYTES_MAX)}, not {value}"
                )
        return value

    @field_validator("disk_buffers_max")
    @classmethod
    def _check_buffers(cls, value: str) -> str:
        if not LIMIT_BYTES_MIN <= parse_size(value) <= LIMIT_BYTES_MAX:
            raise ValueError(
                f"disk_buffers_max has {format_size(LIMIT_BYTES_MIN)} to {format_size(LIMIT_BYTES_MAX)}, not {value}"
            )
        return value

    @field_validator("disk_capacity")
    @classmethod
    def _check_disk_capacity(cls, value: str) -> str:
        if not DISK_BYTES_MIN <= parse_size(value) <= LIMIT_BYTES_MAX:
            raise ValueError(
                f"a disk tier has {format_size(DISK_BYTES_MIN)} to {format_size(LIMIT_BYTES_MAX)}, not {value}"
            )
        return value

    @field_validator("disk_path")
    @classmethod
    def _check_disk_path(cls, value: str) -> str:
        if value != "off" and not Path(value).is_absolute():
            raise ValueError(f"disk_path is an absolute path, or off, not {value!r}")
        return value

    @field_validator("data_dir", mode="before")
    @classmethod
    def _in_the_state_directory(cls, value: Any) -> Any:
        return state_directory("segment") if value is None else value
