"""How large a segment's pool may be on this machine (cgroups included)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvstore.common.errors import KvstoreError
from kvstore.common.sizes import format_size, parse_size

AUTO_FRACTION = 0.25
AUTO_BYTES_MAX = 64 << 30
CAPACITY_BYTES_MIN = 1 << 20
CAPACITY_BYTES_MAX = 1 << 50  # a petabyte: more is a slip of the keyboard
# What the process and its neighbours need besides the pool: interpreter, index, page tables, socket buffers.
RESERVED_FRACTION = 0.05


class CapacityError(KvstoreError):
    """A pool that does not fit into this machine's memory."""


def check_capacity(text: str) -> str:
    """The text, a size or 'auto'. ValueError when no pool can have that size."""
    if text != "auto":
        wanted_bytes = parse_size(text)
        if not CAPACITY_BYTES_MIN <= wanted_bytes <= CAPACITY_BYTES_MAX:
            raise ValueError(
                f"a pool has {format_size(CAPACITY_BYTES_MIN)} to {format_size(CAPACITY_BYTES_MAX)}, not {text}"
            )
    return text


def auto_capacity(available_bytes: int) -> int:
    """The pool size of `auto`: a quarter of what is available, at most 64 GiB, in whole MiB."""
    share_bytes = min(int(available_bytes * AUTO_FRACTION), AUTO_BYTES_MAX)
    return max(share_bytes >> 20 << 20, CAPACITY_BYTES_MIN)


def capacity_of(setting: str, memory: Callable[[], tuple[int, str]] | None = None, had_bytes: int = 0) -> int:
    """The pool size in bytes that `setting` asks for.

    `had_bytes`: what the pool has already, by an earlier process. CapacityError with the numbers when it can't fit.
    """
    available_bytes, limited_by = (memory or available_memory)()
    available_bytes += had_bytes
    if setting == "auto":
        return auto_capacity(available_bytes)
    wanted_bytes = parse_size(setting)
    usable_bytes = int(available_bytes * (1 - RESERVED_FRACTION))
    if wanted_bytes > usable_bytes:
        raise CapacityError(
            f"a pool of {format_size(wanted_bytes)} ({wanted_bytes} bytes) does not fit: "
            f"{format_size(available_bytes)} "
            f"({available_bytes} bytes) are free ({limited_by}) and the process needs some besides; "
            f"ask for at most {usable_bytes >> 20}MiB, or raise that limit"
        )
    return wanted_bytes


def available_memory(
    proc: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")
) -> tuple[int, str]:
    """(bytes this process may still take, what sets that limit): the smallest of MemAvailable and every
    cgroup above us.
    """
    available_bytes = _meminfo_available(proc / "meminfo")
    limited_by = "memory available on this machine"
    for directory in _cgroup_directories(proc / "self" / "cgroup", cgroup_root):
        room_bytes = _cgroup_room(directory)
        if room_bytes is not None and room_bytes < available_bytes:
            available_bytes = room_bytes
            limited_by = f"memory limit of cgroup {directory}"
    return available_bytes, limited_by


def _meminfo_available(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{meminfo} has no MemAvailable line")


def _cgroup_directories(self_cgroup: Path, root: Path) -> list[Path]:
    """Our cgroup and its parents, for version 2 (one hierarchy) and version 1 (the memory controller's)."""
    try:
        lines = self_cgroup.read_text().splitlines()
    except OSError:
        return []
    directories: list[Path] = []
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        hierarchy, controllers, path = parts
        if hierarchy == "0" and not controllers:
            base = root
        elif "memory" in controllers.split(","):
            base = root / "memory"
        else:
            continue
        relative = Path(path.lstrip("/"))
        # Inside a container the path may be the host's; the root then still holds the container's own limit.
        directories += [base / relative, *(base / parent for parent in relative.parents), base]
    return [directory for directory in dict.fromkeys(directories) if directory.is_dir()]


def _cgroup_room(directory: Path) -> int | None:
    """Bytes left under the limit of one cgroup (page cache that can be dropped counts as free), None without
    a limit.
    """
    for limit_name, usage_name, inactive_key in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit_bytes = _read_int(directory / limit_name)
        usage_bytes = _read_int(directory / usage_name)
        if limit_bytes is None or usage_bytes is None:
            continue
        inactive_bytes = _stat_value(directory / "memory.stat", inactive_key)
        return max(0, limit_bytes - max(0, usage_bytes - inactive_bytes))
    return None


def _read_int(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _stat_value(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return int(value)
    return 0
