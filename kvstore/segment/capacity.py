"""Sizes with units, and how much memory a process may take on this machine (cgroups included)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from kvstore.segment.errors import SegmentStartError

_UNIT_BYTES = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 10**3,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mb": 10**6,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gb": 10**9,
    "gib": 1 << 30,
    "t": 1 << 40,
    "tb": 10**12,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")

AUTO_FRACTION = 0.25
AUTO_BYTES_MAX = 64 << 30
CAPACITY_BYTES_MIN = 1 << 20
# What the process and its neighbours need besides the pool: interpreter, index, page tables, socket buffers.
RESERVED_FRACTION = 0.05


def parse_size(text: str) -> int:
    """Bytes of `512MiB`, `8GiB`, `1.5TB`, `4g` (binary) or a plain number.

    ValueError names the accepted forms.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in _UNIT_BYTES:
        raise ValueError(f"{text!r} is not a size: write a number and a unit, as in 512MiB, 8GiB or 1.5TB")
    return int(float(match.group(1)) * _UNIT_BYTES[unit])


def format_size(size_bytes: int) -> str:
    """`size_bytes` for people: 8589934592 -> '8.0 GiB'."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"


def auto_capacity(available_bytes: int) -> int:
    """The pool size of `auto`: a quarter of what is available, at most 64 GiB, in whole MiB."""
    share_bytes = min(int(available_bytes * AUTO_FRACTION), AUTO_BYTES_MAX)
    return max(share_bytes >> 20 << 20, CAPACITY_BYTES_MIN)


def capacity_of(setting: str, memory: Callable[[], tuple[int, str]] | None = None) -> int:
    """The pool size in bytes that `setting` asks for.

    SegmentStartError with the numbers when it can't fit.
    """
    available_bytes, limited_by = (memory or available_memory)()
    if setting == "auto":
        return auto_capacity(available_bytes)
    wanted_bytes = parse_size(setting)
    usable_bytes = int(available_bytes * (1 - RESERVED_FRACTION))
    if wanted_bytes > usable_bytes:
        raise SegmentStartError(
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
