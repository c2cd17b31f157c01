"""Names: all of their addresses are tried, on every way that leads from one process to another."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import engine_worker
from support.network_lab import LabHost, network_lab
from support.processes import ServerProcess
from support.waiting import wait_until

HUB, STORE = "hub", "store"
PAGES = 8
PAGE_BYTES = 64 << 10
STEP_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def store_host() -> Iterator[LabHost]:
    # A short name: a unix socket's path has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="kv-"))
    with network_lab(HUB, (STORE,), directory / "run") as lab:
        yield lab.hosts[STORE]
    shutil.rmtree(directory)


class Names:
    """The host's own /etc/hosts. Other names are not found: no name server can be reached from there."""

    def __init__(self, host: LabHost, path: Path) -> None:
        self._path = path
        self.say()
        subprocess.run([*host.enter, "mount", "--bind", str(path), "/etc/hosts"], check=True)
        self._undo = [*host.enter, "umount", "/etc/hosts"]

    def say(self, **addresses: str) -> None:
        """name="address address" """
        lines = [f"{one} {name}\n" for name, all_of_it in addresses.items() for one in all_of_it.split()]
        self._path.write_text("".join(lines))

    def close(self) -> None:
        subprocess.run(self._undo, check=True)


@pytest.fixture
def names(store_host: LabHost, tmp_path: Path) -> Iterator[Names]:
    own = Names(store_host, tmp_path / "hosts")
    yield own
    own.close()


class Store:
    """A master and a segment on the host."""

    def __init__(self, host: LabHost, directory: Path) -> None:
        self._host = host
        self._directory = directory
        self._servers: list[ServerProcess] = []

    def start(self, name: str, *arguments: str) -> ServerProcess:
        log = self._directory / f"{name}.log"
        self._servers.append(ServerProcess([name, *arguments], log, enter=self._host.enter))
        return self._servers[-1]

    def start_master(self, host: str) -> dict[str, Any]:
        master = self.start(
            "master",
            f"--host={host}",
            "--directory-port=0",
            "--control-port=0",
            "--http-port=0",
            f"--metadata=rocksdb://{self._directory}/master",
        )
        return master.wait_event("listening")

    def start_segment(self, host: str, advertise: str, control: str) -> ServerProcess:
        return self.start(
            "segment",
            f"--host={host}",
            f"--advertise-host={advertise}",
            f"--masters={control}",
            "--port=0",
            "--http-port=-1",
            "--capacity=32MiB",
            "--unix-path=off",
            f"--data-dir={self._directory}/segment",
        )

    def engine(self, masters: str, action: str) -> int:
        """How many pages were stored, or came back byte-equal."""
        words = (json.dumps({"masters": masters}), action, "0", str(PAGES), str(PAGE_BYTES))
        ended = subprocess.run(
            [*self._host.enter, sys.executable, engine_worker.__file__, *words],
            capture_output=True,
            text=True,
            timeout=STEP_TIMEOUT_S,
        )
        assert ended.returncode == 0, ended.stderr
        return int(json.loads(ended.stdout.splitlines()[-1])["good"])

    def close(self) -> None:
        for server in self._servers:
            server.close()


@pytest.fixture
def store(store_host: LabHost, tmp_path: Path) -> Iterator[Store]:
    running = Store(store_host, tmp_path)
    yield running
    running.close()


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "::1"])
def test_a_name_with_an_address_that_nobody_listens_on_is_reached_at_its_other_one(
    store: Store, names: Names, listens_on: str
) -> None:
    names.say(both="127.0.0.1 ::1")
    master = store.start_master(listens_on)
    store.start_segment(listens_on, "both", f"both:{master['control_port']}").wait_event("attached")
    directory = f"both:{master['directory_port']}"
    assert store.engine(directory, "put") == PAGES
    assert store.engine(directory, "get") == PAGES


def test_a_server_that_listens_on_a_name_listens_on_all_of_its_addresses(store: Store, names: Names) -> None:
    names.say(both="127.0.0.1 ::1")
    master = store.start_master("both")
    store.start_segment("both", "both", f"[::1]:{master['control_port']}").wait_event("attached")
    assert store.engine(f"127.0.0.1:{master['directory_port']}", "put") == PAGES
    assert store.engine(f"[::1]:{master['directory_port']}", "get") == PAGES
    for alone in ("127.0.0.1", "::1"):
        names.say(both=alone)  # of the segment's data port
        assert (
            store.engine(f"{'[::1]' if ':' in alone else alone}:{master['directory_port']}", "get") == PAGES
        )


def test_a_segment_on_all_interfaces_waits_for_the_name_of_its_master(store: Store, names: Names) -> None:
    names.say(other="127.0.0.1")
    master = store.start_master("127.0.0.1")
    segment = store.start_segment("0.0.0.0", "", f"late:{master['control_port']}")
    wait_until(
        lambda: '"event": "name_not_found"' in segment.log(), "it says what it waits for", STEP_TIMEOUT_S
    )
    names.say(late="127.0.0.1")
    assert segment.wait_event("listening")["advertise_host"] == "10.77.1.2"
    segment.wait_event("attached")
    assert segment.log().count('"event": "name_not_found"') == 1


def test_a_server_that_waits_for_a_name_stops_when_it_is_told_to(store: Store, names: Names) -> None:
    segment = store.start_segment("0.0.0.0", "", "never:7441")
    master = store.start(
        "master",
        "--host=never",
        "--directory-port=0",
        "--control-port=0",
        "--http-port=0",
        "--metadata=memory:",
    )
    for server in (segment, master):
        wait_until(
            lambda log=server.log: '"event": "name_not_found"' in log(),
            "it waits for the name",
            STEP_TIMEOUT_S,
        )
        assert server.stop() == 0
