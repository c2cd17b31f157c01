"""`kvstore admin` against real processes: masters, segments, and pages that a real client has put."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvstore.cli.main import app
from kvstore_client import Client, Identity, Shard
from support.etcd_server import own_prefix, shared_etcd
from support.processes import Cluster
from support.replicated_cluster import ReplicatedCluster
from support.running_cluster import paused
from support.waiting import wait_until

TOKEN = "hunter2"
PAGE_BYTES = 20_000
PAGE_KEY = "ab" * 32
SHARD = Shard(0, 32, 1, 4)
IDENTITY = Identity(
    model="llama",
    kv_dtype="bfloat16",
    store_dtype="bfloat16",
    pool_class="MHA",
    byte_order="page_first",
    page_size=64,
)


class Admin:
    """Runs commands as an operator's shell would, in this process."""

    def __init__(self, masters: str, token: str = "") -> None:
        self._env = {"KVSTORE_ADMIN_MASTER": masters, "KVSTORE_ADMIN_TOKEN": token}

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """stdout of a command that ends with `code`; stderr when that is not 0."""
        result = CliRunner().invoke(app, ["admin", *arguments], env=self._env)
        assert result.exit_code == code, result.output
        if code:
            assert result.stdout or result.stderr.splitlines()[-1].startswith("kvstore: ")
        return result.stderr if code and not result.stdout else result.stdout

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))

    def segments(self) -> dict[int, dict[str, Any]]:
        return {segment["index"]: segment for segment in self.json("segments")["segments"]}


ADMIN_PAGE = (Path(__file__).parents[2] / "docs" / "admin.md").read_text()


def documented_fields(command: str) -> set[str]:
    """What docs/admin.md says that `--json` prints; `as above` is that of `segments`."""
    item = rf"^- (?:`\w+`, )?`{command}`(?:, `\w+`)?: (.*?)(?=^- |^\Z)"
    (row,) = re.findall(item, ADMIN_PAGE + "\n", re.MULTILINE | re.DOTALL)
    fields = set(re.findall(r"`(\w+)`", row))
    return fields | documented_fields("segments") - {"segments"} if "as above" in row else fields


def fields_of(value: Any) -> set[str]:
    """Every name in it; an identity has its own, and how far a drain is may be known or not."""
    if isinstance(value, list):
        return set().union(*map(fields_of, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    return set(value).union(
        *(fields_of(each) for name, each in value.items() if name not in ("identity", "drain"))
    )


# ---- one master on RocksDB ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master with a token and two segments."""
    store = Cluster(tmp_path_factory.mktemp("store"), capacity="64MiB")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KVSTORE_MASTER_TOKEN", TOKEN)
        environment.setenv("KVSTORE_SEGMENT_TOKEN", TOKEN)
        try:
            store.start_master()
            for name in ("first", "second"):
                store.start_segment(name, wait=False)
            for segment in store.segments.values():
                segment.wait_event("attached")
            yield store
        finally:
            store.close()
            print(store.logs())


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    return Admin(cluster.control, TOKEN)


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.masters, token=TOKEN, deadline_ms=5000) as connected:
        yield connected


def fill(client: Client, namespace: str, *keys: str) -> None:
    stored = client.namespace(namespace)
    assert all(stored.put(key, os.urandom(PAGE_BYTES)) for key in keys)


def test_status_of_a_store_that_is_well(admin: Admin, cluster: Cluster, client: Client) -> None:
    fill(client, "status", "a", "b")
    status = admin.json("status")
    assert (status["healthy"], status["problems"]) == (True, [])
    assert status["leader"] == status["answered_by"] == cluster.control
    assert status["segments"] == {"live": 2, "suspect": 0, "draining": 0, "gone": 0}
    assert (status["capacity_bytes"], status["term"]) == (2 * (64 << 20), 1)
    assert status["object_count"] >= 2 and status["namespace_count"] >= 1
    assert (status["metadata"]["kind"], status["commit_backlog_bytes"]) == ("rocksdb", 0)
    (master,) = status["masters"]
    assert (master["role"], master["problem"]) == ("leader", None)
    lines = admin("status").splitlines()
    assert lines[0] == "healthy"
    assert f"leader      {cluster.control}, term 1" in lines[2]


def test_segments_and_namespaces_are_listed(admin: Admin, cluster: Cluster, client: Client) -> None:
    fill(client, "listed", "a")
    segments = admin.segments()
    addresses = {f"127.0.0.1:{s.wait_event('listening')['port']}" for s in cluster.segments.values()}
    assert {segment["address"] for segment in segments.values()} == addresses
    assert {(s["state"], s["attached"], s["draining"]) for s in segments.values()} == {("live", True, False)}
    text = admin("segments")
    assert all(segment["segment_id"] in text and segment["address"] in text for segment in segments.values())
    wait_until(
        lambda: any(segment["used_bytes"] for segment in admin.segments().values()),
        "a heartbeat has told, with the token, what is used",
    )
    namespaces = {each["name"]: each for each in admin.json("namespaces")["namespaces"]}
    assert (namespaces["listed"]["object_count"], namespaces["listed"]["object_bytes"]) == (1, PAGE_BYTES)
    assert namespaces["listed"]["identity"]["kind"] == "named"
    assert namespaces["listed"]["id"] in admin("namespaces")


def test_stat_finds_what_a_client_has_put(admin: Admin, client: Client) -> None:
    fill(client, "stat", "chat/1")
    found = admin.json("stat", "chat/1", "--namespace", "stat")
    assert (found["found"], found["length_bytes"], found["served"]) == (True, PAGE_BYTES, True)
    assert found["namespace"]["name"] == "stat"
    (replica,) = found["replicas"]
    assert admin.segments()[replica["index"]]["segment_id"] == replica["segment_id"]
    assert found["pinned"] is None
    text = admin("stat", "chat/1", "--namespace", "stat")
    assert replica["address"] in text and "20000 bytes" in text
    assert admin.json("stat", found["fingerprint"], "--fingerprint")["replicas"] == found["replicas"]
    assert "not found: chat/2" in admin("stat", "chat/2", "--namespace", "stat", code=1)
    assert admin.json("stat", "chat/2", "--namespace", "stat", code=1)["found"] is False
    fill(client, "stat too", "x")
    assert "ambiguous" in admin("stat", "chat/1", "--namespace", "sta", code=2)
    assert "say which namespace" in admin("stat", "chat/1", code=2)


def test_stat_finds_the_shard_of_a_page(admin: Admin, client: Client) -> None:
    assert client.namespace(IDENTITY).pages(shards=(SHARD,)).put(PAGE_KEY, os.urandom(PAGE_BYTES))
    found = admin.json("stat", PAGE_KEY, "--page", "--shard", "0:32:1:4")
    assert (found["kind"], found["length_bytes"]) == ("page", PAGE_BYTES)
    assert "name one with --shard" in admin("stat", PAGE_KEY, "--page", code=1)
    assert "say --page" in admin("stat", PAGE_KEY, "--namespace", "stat", code=1)


def test_clear_ends_a_namespace_for_every_client(admin: Admin, client: Client) -> None:
    fill(client, "to clear", "a", "b", "c")
    assert client.namespace("to clear").exists("a")
    assert "say --yes" in admin("clear", "to clear", code=2)
    assert client.namespace("to clear").exists("a")
    cleared = admin.json("clear", "to clear", "--yes")
    assert (cleared["dropped_object_count"], cleared["dropped_object_bytes"]) == (3, 3 * PAGE_BYTES)
    assert (cleared["epoch"], cleared["already_cleared"]) == (1, False)
    assert not client.namespace("to clear").exists("a")
    assert admin.json("status")["retired_object_count"] >= 3
    assert "not found" in admin("stat", "a", "--namespace", "to clear", code=1)
    fill(client, "to clear", "a")
    assert client.namespace("to clear").exists("a")
    assert "dropped; now" in admin("clear", "to clear", "--yes")
    assert "no namespace fits 'nowhere'" in admin("clear", "nowhere", "--yes", code=1)


def test_forget_removes_a_namespace_and_who_still_uses_it_begins_anew(admin: Admin, client: Client) -> None:
    fill(client, "to forget", "a", "b")
    assert "say --yes" in admin("forget", "to forget", code=2)
    forgotten = admin.json("forget", "to forget", "--yes")
    assert (forgotten["dropped_object_count"], forgotten["dropped_object_bytes"]) == (2, 2 * PAGE_BYTES)
    assert "to forget" not in [n["name"] for n in admin.json("namespaces")["namespaces"]]
    assert "no namespace fits 'to forget'" in admin("forget", "to forget", "--yes", code=1)
    assert not client.namespace("to forget").exists("a")
    fill(client, "to forget", "a")
    assert client.namespace("to forget").exists("a") and not client.namespace("to forget").exists("b")
    (again,) = [n for n in admin.json("namespaces")["namespaces"] if n["name"] == "to forget"]
    assert again["epoch"] == 1 and again["id"] != forgotten["id"]


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, True), ("y", 0, False)])
def test_clear_asks_on_a_terminal(
    cluster: Cluster, client: Client, answer: str, code: int, left: bool
) -> None:
    fill(client, f"asked {answer}", "a")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kvstore.cli.main", "admin", "clear", f"asked {answer}"]
    environment = {**os.environ, "KVSTORE_ADMIN_MASTER": cluster.control, "KVSTORE_ADMIN_TOKEN": TOKEN}
    os.write(ours, f"{answer}\n".encode())
    try:
        result = subprocess.run(
            command, stdin=theirs, capture_output=True, text=True, timeout=60, env=environment, check=False
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert result.returncode == code, result.stderr
    assert "holds 1 object, 19.5 KiB" in result.stderr and "Do it? [y/N]" in result.stderr
    assert client.namespace(f"asked {answer}").exists("a") is left


def test_a_drained_segment_gets_no_page_and_serves_those_it_has(admin: Admin, client: Client) -> None:
    namespace = client.namespace("drained")
    for drained, other in ((0, 1), (1, 0)):
        fill(client, "drained", f"before {drained}")
        told = admin.json("drain", str(drained), "--yes")
        assert (told["segment"]["state"], told["pages_are_moved"]) == ("draining", True)
        before = admin.segments()
        assert told["remaining_object_count"] == before[drained]["object_count"]
        keys = [f"{drained} {i}" for i in range(12)]
        fill(client, "drained", *keys)
        for key in keys:
            (replica,) = admin.json("stat", key, "--namespace", "drained")["replicas"]
            assert replica["index"] == other
        assert admin.segments()[drained]["object_count"] <= before[drained]["object_count"]
        assert namespace.get(f"before {drained}") is not None
        address = before[drained]["address"]
        assert "new pages are placed on it again" in admin("undrain", address)
    assert {segment["state"] for segment in admin.segments().values()} == {"live"}
    text = admin("drain", admin.segments()[1]["segment_id"][:8], "--yes")
    assert "others copy what it has" in text and "kvstore admin undrain 1" in text
    text = admin("drain", "1", "--wait", "--yes")
    assert "is drained: it can be stopped" in text and "draining, drained" in admin("segments")
    assert admin.json("undrain", "1")["segment"]["state"] == "live"
    assert "say --yes" in admin("drain", "0", code=2)
    assert "no segment fits '77'" in admin("drain", "77", "--yes", code=1)


def test_what_json_prints_is_what_the_documentation_says(admin: Admin, client: Client) -> None:
    fill(client, "documented", "a")
    commands: dict[str, tuple[str, ...]] = {
        "status": (),
        "segments": (),
        "namespaces": (),
        "stat": ("a", "--namespace", "documented"),
        "clear": ("documented", "--yes"),
        "forget": ("documented", "--yes"),
        "drain": ("0", "--yes"),
        "undrain": ("0",),
    }
    for command, arguments in commands.items():
        assert fields_of(admin.json(command, *arguments)) == documented_fields(command), command


def test_a_wrong_token_is_a_refusal_and_the_right_one_may_come_from_a_file(
    admin: Admin, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("KVSTORE_MASTER_TOKEN", "KVSTORE_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    wrong, none = Admin(cluster.control, "hunter3"), Admin(cluster.control)
    assert "the token is wrong" in wrong("status", code=1)
    assert "no token was presented" in none("segments", code=1)
    assert "no token was presented" in none("drain", "0", "--yes", code=1)
    assert none("status", "--token-file", str(tmp_path / "token")).startswith("healthy")
    # As in the container of a master.
    monkeypatch.setenv("KVSTORE_MASTER_TOKEN", TOKEN)
    assert none("status").startswith("healthy")


def test_a_master_that_is_down_is_told_beside_one_that_answers(admin: Admin, cluster: Cluster) -> None:
    status = admin.json("status", "--master", f"127.0.0.1:9,{cluster.control}")
    assert not status["healthy"]
    assert status["problems"] == ["master 127.0.0.1:9 does not answer: connection refused"]
    assert [master["role"] for master in status["masters"]] == [None, "leader"]
    assert admin.json("segments", "--master", f"127.0.0.1:9,{cluster.control}")["segments"]


@pytest.mark.parametrize("command", [("status",), ("segments",), ("clear", "x", "--yes"), ("undrain", "0")])
def test_no_master_is_exit_code_3_with_a_way_on(admin: Admin, command: tuple[str, ...]) -> None:
    text = admin(*command, "--master", "127.0.0.1:9", code=3)
    assert "no master answers: 127.0.0.1:9: connection refused" in text and "--master HOST:7441" in text


def test_a_master_that_hangs_is_exit_code_3_within_the_timeout(admin: Admin, cluster: Cluster) -> None:
    with paused(cluster.master):
        for command in (("status",), ("drain", "0", "--yes")):
            started = time.monotonic()
            assert "no answer within" in admin(*command, "--timeout-ms", "1000", code=3)
            assert time.monotonic() - started < 5  # it was one second; the rest is for a busy machine


def test_draining_survives_the_master_and_the_segments_memory(
    admin: Admin, cluster: Cluster, client: Client
) -> None:
    (index,) = [s["index"] for s in admin.segments().values() if s["index"] == 0]
    segment_id = admin.segments()[index]["segment_id"]
    name = next(
        name for name, s in cluster.segments.items() if s.wait_event("listening")["segment_id"] == segment_id
    )
    admin("drain", str(index), "--yes")
    cluster.master.kill()
    assert "connection refused" in admin("status", code=3)
    cluster.start_master()

    def attached() -> bool:
        return all(segment["attached"] for segment in admin.segments().values())

    wait_until(attached, "both segments are attached again")
    assert admin.segments()[index]["state"] == "draining"
    before = admin.segments()[index]["object_count"]
    fill(client, "survives", *(f"{i}" for i in range(10)))
    assert admin.segments()[index]["object_count"] <= before

    cluster.segments[name].kill()

    def suspect() -> bool:
        return admin.segments()[index]["state"] == "suspect"

    wait_until(suspect, "the killed segment is suspect")
    told = admin.json("status")
    assert not told["healthy"] and told["problems"][0].startswith("1 segment is suspect")
    assert admin("status").startswith("degraded: 1 segment is suspect")
    cluster.start_segment(name)
    (again,) = [segment for segment in admin.segments().values() if segment["segment_id"] == segment_id]
    assert (again["state"], again["object_count"]) == ("draining", 0)
    assert again["index"] != index
    fill(client, "survives", *(f"again {i}" for i in range(10)))
    assert admin.segments()[again["index"]]["object_count"] == 0
    assert admin.json("undrain", segment_id[:8])["segment"]["state"] == "live"


# ---- what is kept --------------------------------------------------------------------------------------------


def own_namespace(admin: Admin, name: str) -> dict[str, Any]:
    (view,) = [each for each in admin.json("namespaces")["namespaces"] if each["name"] == name]
    return dict(view)


def test_keep_names_objects_by_key_and_namespaces_shows_them(admin: Admin, client: Client) -> None:
    fill(client, "kept-keys", *map(str, range(6)))
    said = admin.json("keep", "kept-keys", "0", "1", "2", "absent", "--retain", "--ttl", "10min")
    assert fields_of(said) <= documented_fields("keep")
    assert (said["intent"], said["ttl_ms"], said["kept"], said["refused"]) == ("retain", 600_000, 3, 0)
    view = own_namespace(admin, "kept-keys")
    assert view["retained_objects"] == 3
    assert PAGE_BYTES * 3 <= view["retained_bytes"] <= view["retained_bytes_max"]
    assert "1 object of" in admin("keep", "kept-keys", "5", "--demote")
    assert own_namespace(admin, "kept-keys")["demoted_objects"] == 1
    assert "6 objects of" in admin("keep", "kept-keys", "--all", "--normal")
    view = own_namespace(admin, "kept-keys")
    assert (view["retained_objects"], view["demoted_objects"]) == (0, 0)


def test_keep_takes_pages_with_their_shard_and_fingerprints(admin: Admin, client: Client) -> None:
    pages = client.namespace(IDENTITY).pages(shards=[SHARD])
    assert pages.put(PAGE_KEY, os.urandom(PAGE_BYTES))
    of_pages = client.namespace(IDENTITY).name
    assert admin.json("keep", of_pages, PAGE_KEY, "--page", "--demote", code=1)["kept"] == 0  # another shard
    page = (PAGE_KEY, "--page", "--shard", "0:32:1:4")
    assert admin.json("keep", of_pages, *page, "--demote")["kept"] == 1
    found = admin.json("stat", *page, "--namespace", of_pages)
    assert admin.json("keep", of_pages, found["fingerprint"], "--fingerprint", "--normal")["kept"] == 1


def test_what_is_over_the_budget_is_said_with_the_remedy(
    admin: Admin, client: Client, cluster: Cluster
) -> None:
    fill(client, "kept-all", *map(str, range(400)))
    said = admin.json("keep", "kept-all", "--all", "--retain")
    assert said["refused"] > 0
    assert said["kept"] + said["refused"] == 400
    view = own_namespace(admin, "kept-all")
    assert view["retained_objects"] == said["kept"]
    assert view["retentions_refused"] == said["refused"]
    assert view["retained_bytes"] <= view["retained_bytes_max"] < 64 << 20
    result = CliRunner().invoke(
        app,
        ["admin", "keep", "kept-all", "--all", "--retain"],
        env={"KVSTORE_ADMIN_MASTER": cluster.control, "KVSTORE_ADMIN_TOKEN": TOKEN},
    )
    assert "raise retained_namespace_fraction_max" in result.stderr
    admin("keep", "kept-all", "--all", "--normal")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("kept-keys", "1"), "one of --retain, --demote and --normal"),
        (("kept-keys", "1", "--retain", "--demote"), "one of --retain, --demote and --normal"),
        (("kept-keys", "--retain"), "name keys, or say --all"),
        (("kept-keys", "1", "--all", "--retain"), "name keys, or say --all"),
        (("kept-keys", "1", "--retain", "--ttl", "2d"), "between 1 ms and a day"),
        (("kept-keys", "1", "--retain", "--ttl", "soon"), "as in 90s, 30min or 6h"),
        (("kept-keys", "1", "--page", "--retain"), "kvstore: "),
    ],
)
def test_a_keep_that_can_t_be_is_a_usage_error(admin: Admin, arguments: tuple[str, ...], text: str) -> None:
    assert text in admin("keep", *arguments, code=2)


def test_a_keep_of_what_is_nowhere_ends_with_1(admin: Admin, client: Client) -> None:
    fill(client, "kept-none", "one")
    assert admin.json("keep", "kept-none", "another", "--retain", code=1)["kept"] == 0
    assert "no namespace fits" in admin("keep", "nobody's", "key", "--retain", code=1)


# ---- two masters on etcd -----------------------------------------------------------------------------------


def test_commands_find_the_leader_and_a_drain_survives_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("KVSTORE_MASTER_TOKEN", "KVSTORE_SEGMENT_TOKEN"):
        monkeypatch.setenv(variable, TOKEN)
    uri = shared_etcd().uri(own_prefix(tmp_path), ttl_s=2)
    cluster = ReplicatedCluster(tmp_path, uri)
    try:
        cluster.start()
        for name in ("first", "second"):
            cluster.start_segment(name, wait=False)
        for segment in cluster.segments.values():
            segment.wait_event("attached")
        leader, standby = cluster.leader(), cluster.standby()
        at_standby = Admin(f"127.0.0.1:{standby.control_port}", TOKEN)
        both = Admin(f"127.0.0.1:{standby.control_port},127.0.0.1:{leader.control_port}", TOKEN)

        # The standby alone is named: reads and changes go to the leader all the same.
        status = at_standby.json("status")
        assert status["healthy"], status
        assert status["leader"] == status["answered_by"] == f"127.0.0.1:{leader.control_port}"
        assert [master["role"] for master in status["masters"]] == ["standby", "leader"]
        assert status["metadata"]["kind"] == "etcd"
        assert at_standby.json("drain", "0", "--yes")["segment"]["state"] == "draining"
        assert at_standby.segments()[0]["attached"] is True

        leader.process.kill()
        told = at_standby.json("status")  # no leader, or the new one already
        assert told["leader"] != f"127.0.0.1:{leader.control_port}" or not told["healthy"]
        # A change waits for the new leader.
        undrained = at_standby.json("undrain", "1", "--timeout-ms", "20000")
        assert undrained["segment"]["state"] == "live"
        assert cluster.leader() is standby
        drained = at_standby.segments()[0]
        assert (drained["state"], drained["draining"]) == ("draining", True)

        status = both.json("status")
        assert not status["healthy"] and status["term"] >= 2
        assert any("does not answer: connection refused" in problem for problem in status["problems"])

        def both_attached() -> bool:
            return all(segment["attached"] for segment in at_standby.segments().values())

        wait_until(both_attached, "the segments have found the new leader")
        with Client(cluster.masters, token=TOKEN, deadline_ms=5000) as client:
            fill(client, "after", *(f"{i}" for i in range(10)))
        segments = at_standby.segments()
        assert (segments[0]["object_count"], segments[1]["object_count"]) == (0, 10)
    finally:
        cluster.close()
        print(cluster.logs())
