"""The memory of a segment's pool, with real processes: where it is, what outlives what, what is in the way and what to do about it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore_client import Client
from support import pages
from support.etcd_server import free_ports
from support.processes import Cluster, ServerProcess, process_is_gone, segment_metrics
from support.waiting import wait_until

# So much that a signal comes before it is touched.
LARGE = "3GiB"
TOUCHED_BYTES = 64 << 20


@pytest.fixture
def pool_file() -> Iterator[Path]:
    path = Path(f"/dev/shm/kvstore-test-{os.getpid()}-{os.urandom(4).hex()}")
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """A segment that no master is there for."""
    started: list[ServerProcess] = []

    def run(*options: str, name: str = "segment", enter: tuple[str, ...] = ()) -> ServerProcess:
        arguments = [
            "segment",
            "--capacity=16MiB",
            "--masters=127.0.0.1:1",
            "--port=0",
            "--http-port=0",
            f"--unix-path={tmp_path / name}.sock",
            f"--data-dir={tmp_path / name}",
            *options,
        ]
        started.append(ServerProcess(arguments, tmp_path / f"{name}.log", enter=enter))
        return started[-1]

    yield run
    for process in started:
        process.close()


def with_own_mounts(commands: str) -> tuple[str, ...]:
    """What a command begins with to run after these, in mounts of its own."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return ("unshare", "--mount", *user, "sh", "-c", f'set -e; {commands}; exec "$@"', "sh")


def small_shared_memory(size: str) -> tuple[str, ...]:
    return with_own_mounts(f"mount -t tmpfs -o size={size} none /dev/shm")


def events(process: ServerProcess, name: str) -> list[dict[str, Any]]:
    lines = [line for line in process.log_path.read_text().splitlines() if line.startswith("{")]
    return [event for event in map(json.loads, lines) if event.get("event") == name]


def why_it_ended(process: ServerProcess) -> str:
    assert process.process.wait(60) == 1, process.log()
    return process.log()


# ---- where it is -------------------------------------------------------------------------------------------


def test_a_pool_by_default_is_a_file_of_the_segment_that_the_next_process_takes_over(
    start: Callable[..., ServerProcess],
) -> None:
    segment = start("--pool-path=auto")
    file = Path(f"/dev/shm/kvstore-{segment.wait_event('listening')['segment_id']}")
    try:
        (ready,) = events(segment, "pool_ready")
        assert ready["pool"] == str(file) and not ready["adopted"] and ready["gb_per_s"] > 0
        assert file.stat().st_mode & 0o777 == 0o600
        size = file.stat().st_size
        assert segment.stop() == 0
        assert file.stat().st_size == size
        assert events(segment, "segment_stopped")[0]["pool_kept"] == str(file)
        again = start("--pool-path=auto")
        again.wait_event("listening")
        assert events(again, "pool_ready")[-1]["adopted"]
        again.kill()
        third = start("--pool-path=auto")
        third.wait_event("listening")
        assert [ready["adopted"] for ready in events(third, "pool_ready")] == [False, True, True]
    finally:
        file.unlink()


def test_clients_of_this_host_read_a_pool_that_is_a_file_through_shared_memory(
    tmp_path: Path, pool_file: Path
) -> None:
    cluster = Cluster(tmp_path, "32MiB")
    try:
        cluster.start_master()
        cluster.start_segment(options=(f"--pool-path={pool_file}",))
        with Client(cluster.masters, tcp=False) as client:
            namespace = client.namespace("n")
            for key in ("a", "b"):
                assert namespace.put(key, pages.content(key))
                assert namespace.get(key) == pages.content(key)
            assert client.stats()["transport_same_host_bytes_get"] > 0
    finally:
        cluster.close()


def test_without_room_in_shared_memory_the_segment_serves_from_its_own_and_says_so(
    start: Callable[..., ServerProcess],
) -> None:
    segment = start("--pool-path=auto", enter=small_shared_memory("10m"))
    segment.wait_event("listening")
    (told,) = events(segment, "pool_not_kept")
    assert "the file system has 10 MiB free of 10 MiB and 18 MiB are needed" in told["why"]
    assert "enlarge it" in told["why"] and "size" in told["why"]
    assert events(segment, "pool_ready")[0]["pool"] == "memory of this process"
    assert segment.stop() == 0


def test_a_path_that_was_asked_for_is_that_or_no_start(start: Callable[..., ServerProcess]) -> None:
    why = why_it_ended(start("--pool-path=/dev/shm/pool", enter=small_shared_memory("10m")))
    assert "18 MiB are needed; enlarge it" in why


def test_a_disk_is_refused(start: Callable[..., ServerProcess], tmp_path: Path) -> None:
    directory = Path(__file__).parent / "no-such-file"
    why = why_it_ended(start(f"--pool-path={directory}"))
    assert "neither on tmpfs nor on hugetlbfs" in why or "Read-only file system" in why
    assert not directory.exists()


def test_two_segments_on_one_pool_are_refused_and_the_first_is_named(
    start: Callable[..., ServerProcess], pool_file: Path
) -> None:
    first = start(f"--pool-path={pool_file}", name="first")
    first.wait_event("listening")
    why = why_it_ended(start(f"--pool-path={pool_file}", name="second"))
    assert f"the pool file {pool_file} is in use by another process (pid {first.pid})" in why
    assert first.process.poll() is None and pool_file.exists()


def test_a_pool_of_another_size_is_refused_untouched_with_both_sizes_and_the_remedy(
    start: Callable[..., ServerProcess], pool_file: Path
) -> None:
    first = start(f"--pool-path={pool_file}", name="first")
    first.wait_event("listening")
    assert first.stop() == 0
    before = pool_file.read_bytes()
    why = why_it_ended(start(f"--pool-path={pool_file}", "--capacity=24MiB", name="first"))
    assert f"has room for {16 << 20} bytes for objects" in why
    assert f"and the settings make it {24 << 20} bytes for objects" in why
    assert "set capacity as it was, or empty it with --empty-pool" in why
    assert pool_file.read_bytes() == before


def test_a_start_that_fails_later_takes_a_new_file_with_it_and_leaves_an_old_one(
    start: Callable[..., ServerProcess], pool_file: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = f"--port={taken.getsockname()[1]}"
        assert "can't be opened" in why_it_ended(start(f"--pool-path={pool_file}", port))
        assert not pool_file.exists()
        first = start(f"--pool-path={pool_file}")
        first.wait_event("listening")
        assert first.stop() == 0
        assert "can't be opened" in why_it_ended(start(f"--pool-path={pool_file}", port))
        assert pool_file.exists()


def test_a_file_of_a_segment_that_is_gone_is_told_of(start: Callable[..., ServerProcess]) -> None:
    commands = (
        "mount -t tmpfs -o size=64m none /dev/shm; head -c 8192 /dev/zero > /dev/shm/kvstore-" + "7" * 32
    )
    segment = start("--pool-path=auto", enter=with_own_mounts(commands))
    segment.wait_event("listening")
    (told,) = events(segment, "pools_left_behind")
    assert told["files"] == "/dev/shm/kvstore-" + "7" * 32 and told["bytes"] == 8192
    assert segment.stop() == 0


def test_a_segment_whose_file_is_removed_or_replaced_does_not_say_that_it_is_kept(
    start: Callable[..., ServerProcess], pool_file: Path
) -> None:
    segment = start(f"--pool-path={pool_file}", name="removed")
    segment.wait_event("listening")
    assert segment_metrics(segment)["pool_kept"] == 1
    pool_file.unlink()
    assert segment_metrics(segment)["pool_kept"] == 0
    other = start(f"--pool-path={pool_file}", name="other")
    other.wait_event("listening")
    assert segment_metrics(segment)["pool_kept"] == 0, "that file is another segment's"
    assert segment.stop() == 0 and other.stop() == 0
    assert [events(process, "segment_stopped")[0]["pool_kept"] for process in (segment, other)] == [
        "no",
        str(pool_file),
    ]


def test_the_size_auto_is_that_of_the_pool_that_is_there_though_nothing_says_so_but_itself(
    start: Callable[..., ServerProcess], pool_file: Path, tmp_path: Path
) -> None:
    first = start(f"--pool-path={pool_file}")
    first.wait_event("listening")
    first.kill()
    (tmp_path / "segment" / "pool").unlink()  # as when it was killed before it wrote this
    second = start(f"--pool-path={pool_file}", "--capacity=auto")
    second.wait_event("listening")
    assert events(second, "pool_ready")[-1]["adopted"]
    assert second.stop() == 0


def test_the_pool_that_a_segment_had_before_its_settings_changed_is_told_of(
    start: Callable[..., ServerProcess], pool_file: Path
) -> None:
    first = start(f"--pool-path={pool_file}")
    first.wait_event("listening")
    assert first.stop() == 0
    second = start("--pool-path=off")
    second.wait_event("listening")
    (told,) = events(second, "pools_left_behind")
    assert told["files"] == str(pool_file) and told["bytes"] >= 16 << 20
    assert pool_file.exists() and second.stop() == 0


# ---- limits ------------------------------------------------------------------------------------------------


def test_a_limit_of_locked_memory_is_named_with_its_remedies(start: Callable[..., ServerProcess]) -> None:
    enter: tuple[str, ...] = ("prlimit", f"--memlock={1 << 20}:{1 << 20}")
    if os.geteuid() == 0:  # without the right to lock whatever it likes, as in a container
        enter += ("setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock")
    why = why_it_ended(start("--lock-memory", enter=enter))
    assert "RLIMIT_MEMLOCK is 1 MiB: raise it (ulimit -l unlimited" in why
    assert "grant CAP_IPC_LOCK" in why and "lock_memory to no" in why


def test_a_limit_of_the_address_space_is_named(start: Callable[..., ServerProcess]) -> None:
    segment = start("--capacity=2GiB", enter=("prlimit", f"--as={(2 << 30)}"))
    assert "RLIMIT_AS is 2048 MiB: raise it (ulimit -v unlimited)" in why_it_ended(segment)


def test_huge_pages_that_are_not_there_are_told_with_the_command_that_makes_them(
    start: Callable[..., ServerProcess],
) -> None:
    why = why_it_ended(start("--capacity=8GiB", "--huge-pages=1GiB", "--pool-path=off"))
    assert "huge pages of 1 GiB are needed and" in why or "this kernel has no huge pages of 1 GiB" in why
    assert "huge_pages to thp" in why


def test_a_numa_node_without_memory_is_named_with_those_that_have_some(
    start: Callable[..., ServerProcess],
) -> None:
    why = why_it_ended(start("--numa-nodes=777"))
    assert "there is no memory on NUMA node 777, only on 0" in why


# ---- stopping, at every moment of a start --------------------------------------------------------------------


def allocated_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512 if path.exists() else 0


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_segment_that_touches_its_pool_is_called_off_and_leaves_no_file(
    start: Callable[..., ServerProcess], pool_file: Path, number: signal.Signals
) -> None:
    segment = start(f"--capacity={LARGE}", f"--pool-path={pool_file}")
    wait_until(lambda: allocated_bytes(pool_file) > TOUCHED_BYTES, "memory is being touched", timeout_s=30)
    segment.process.send_signal(number)
    assert segment.process.wait(20) == 0
    assert not events(segment, "pool_ready"), "touched already: the pool of this test is too small"
    assert not pool_file.exists()


@pytest.mark.alone
def test_up_that_touches_its_pool_is_called_off_with_all_that_it_started(
    tmp_path: Path, pool_file: Path
) -> None:
    ports = (
        "--directory-port=0",
        "--control-port=0",
        "--data-port=0",
        "--http-port=0",
        "--master-http-port=0",
    )
    up = subprocess.Popen(
        [
            *(sys.executable, "-m", "kvstore.cli.main", "up", "--json", f"--size={LARGE}"),
            *(f"--data-dir={tmp_path}", f"--pool-path={pool_file}", *ports),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    try:
        wait_until(
            lambda: allocated_bytes(pool_file) > TOUCHED_BYTES, "memory is being touched", timeout_s=60
        )
        children = Path(f"/proc/{up.pid}/task/{up.pid}/children").read_text().split()
        assert len(children) == 2
        up.send_signal(signal.SIGTERM)
        assert up.wait(20) == 0
        assert all(process_is_gone(int(child)) for child in children)
        assert not pool_file.exists(), "touched already: the pool of this test is too small"
    finally:
        up.kill()
        up.wait(10)


def test_a_segment_that_waits_for_a_name_or_a_master_is_stopped_at_once(
    start: Callable[..., ServerProcess], pool_file: Path
) -> None:
    nobody_asked = with_own_mounts("mount --bind /dev/null /etc/resolv.conf")
    waiting = start("--host=no-such-host.invalid", name="name", enter=nobody_asked)
    wait_until(lambda: events(waiting, "name_not_found"), "it waits for a name", timeout_s=30)
    assert waiting.stop() == 0
    alone = start(f"--pool-path={pool_file}", name="master")
    http_port = alone.wait_event("listening")["http_port"]
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(f"http://127.0.0.1:{http_port}/readyz", timeout=10)
    assert "not attached to a master" in told.value.read().decode()
    assert alone.stop() == 0


@pytest.mark.alone
def test_a_segment_says_how_far_its_pool_is_from_the_first_moment(
    start: Callable[..., ServerProcess], pool_file: Path
) -> None:
    (port,) = free_ports(1)
    start(f"--capacity={LARGE}", f"--pool-path={pool_file}", f"--http-port={port}")

    def said(path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as page:
                return str(page.read().decode())
        except urllib.error.HTTPError as error:
            return str(error.read().decode())
        except OSError:
            return ""

    wait_until(
        lambda: "the pool is being touched" in said("/readyz"), "it is not ready, and says why", timeout_s=30
    )
    assert said("/healthz")
    wait_until(
        lambda: "kvstore_segment_pool_bytes 3." in said("/metrics"), "metrics tell the size", timeout_s=30
    )
