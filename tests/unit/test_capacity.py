from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.common.capacity import CapacityError, auto_capacity, available_memory, capacity_of
from kvstore.common.sizes import format_size, parse_size

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4096", 4096),
        ("8GiB", 8 * GIB),
        ("8 gib", 8 * GIB),
        ("8g", 8 * GIB),
        ("1.5TB", 1_500_000_000_000),
        ("512MiB", 512 << 20),
        ("1kb", 1000),
    ],
)
def test_sizes_are_read_with_their_units(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "8 XiB", "-1", "1e9", "8GiB8", "9" * 400, "9" * 305 + "TB"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="8GiB"):
        parse_size(text)


@given(st.integers(0, 1 << 50))
def test_a_formatted_size_reads_back_within_its_precision(size_bytes: int) -> None:
    assert abs(parse_size(format_size(size_bytes)) - size_bytes) <= size_bytes * 0.051


@given(st.integers(0, 1 << 45))
def test_auto_takes_a_quarter_and_at_most_64_gib(available_bytes: int) -> None:
    capacity_bytes = auto_capacity(available_bytes)
    assert capacity_bytes <= max(available_bytes // 4, 1 << 20)
    assert 1 << 20 <= capacity_bytes <= 64 * GIB


def machine(tmp_path: Path, cgroup_line: str) -> tuple[Path, Path]:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    root.mkdir()
    (proc / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   16777216 kB\n")
    (proc / "self" / "cgroup").write_text(cgroup_line + "\n")
    return proc, root


def test_without_a_cgroup_limit_the_machine_decides(tmp_path: Path) -> None:
    proc, root = machine(tmp_path, "0::/pod/container")
    (root / "pod" / "container").mkdir(parents=True)
    (root / "pod" / "container" / "memory.max").write_text("max\n")
    assert available_memory(proc, root) == (16 * GIB, "memory available on this machine")


def test_the_tightest_cgroup_above_decides_and_droppable_cache_counts_as_free(tmp_path: Path) -> None:
    proc, root = machine(tmp_path, "0::/pod/container")
    pod = root / "pod"
    (pod / "container").mkdir(parents=True)
    for directory, limit, used, inactive in ((pod / "container", 8, 1, 0), (pod, 6, 3, 1)):
        (directory / "memory.max").write_text(f"{limit * GIB}\n")
        (directory / "memory.current").write_text(f"{used * GIB}\n")
        (directory / "memory.stat").write_text(f"anon 5\ninactive_file {inactive * GIB}\n")
    assert available_memory(proc, root) == (4 * GIB, f"memory limit of cgroup {pod}")


def test_a_container_that_sees_the_hosts_cgroup_path_finds_its_limit_at_the_root(tmp_path: Path) -> None:
    proc, root = machine(tmp_path, "0::/kubepods/burstable/pod1234")
    (root / "memory.max").write_text(f"{2 * GIB}\n")
    (root / "memory.current").write_text(f"{GIB}\n")
    assert available_memory(proc, root)[0] == GIB


def test_version_1_cgroups_are_read_too(tmp_path: Path) -> None:
    proc, root = machine(tmp_path, "5:cpu,memory:/job")
    job = root / "memory" / "job"
    job.mkdir(parents=True)
    (job / "memory.limit_in_bytes").write_text(f"{3 * GIB}\n")
    (job / "memory.usage_in_bytes").write_text(f"{GIB}\n")
    assert available_memory(proc, root)[0] == 2 * GIB


def test_a_pool_that_does_not_fit_is_refused_with_the_exact_numbers() -> None:
    with pytest.raises(CapacityError) as caught:
        capacity_of("8GiB", lambda: (4 * GIB, "memory limit of cgroup /x"))
    text = str(caught.value)
    assert str(8 * GIB) in text and str(4 * GIB) in text and "/x" in text
    assert f"{int(4 * GIB * 0.95) >> 20}MiB" in text


def test_what_the_refusal_recommends_is_accepted() -> None:
    memory = (4 * GIB, "test")
    recommended = f"{int(4 * GIB * 0.95) >> 20}MiB"
    assert capacity_of(recommended, lambda: memory) <= 4 * GIB
