"""What `kvstore admin` understands and prints, without a master."""

from __future__ import annotations

import re
from typing import Any

import pytest
from kvstore.v1 import admin_pb2 as pb
from typer.testing import CliRunner

from kvstore.cli.admin import COMMANDS
from kvstore.cli.admin.cluster import MasterView
from kvstore.cli.admin.failures import AdminFailure
from kvstore.cli.admin.object_keys import parse_shard
from kvstore.cli.admin.output import duration, print_table, printable, size
from kvstore.cli.admin.segments import shown_state
from kvstore.cli.admin.selection import select_namespace, select_segment
from kvstore.cli.admin.status import cluster_view
from kvstore.cli.admin.views import identity_summary, segment_view
from kvstore.cli.main import app
from kvstore_client.keys import WHOLE, Shard

GROUPS = {"quota": ["quota set", "quota show", "quota remove"]}
NAMES = [name for command in COMMANDS for name in [command.__name__.rpartition(".")[2]] if name not in GROUPS]
NAMES += ["undrain", *(name for names in GROUPS.values() for name in names)]


def segment(index: int, segment_id: str, address: str, state: str = "live") -> dict[str, Any]:
    return {"index": index, "segment_id": segment_id.ljust(32, "0"), "address": address, "state": state}


SEGMENTS = [
    segment(0, "aaaa1", "10.0.0.1:7450"),
    segment(1, "aaaa2", "10.0.0.2:7450"),
    segment(12, "00012", "10.0.0.3:7450"),
    segment(3, "bbbb", "10.0.0.4:7450", "gone"),
    segment(4, "cccc", "10.0.0.4:7450"),
    segment(5, "dddd", "10.0.0.5:7450", "gone"),
]


# ---- selection ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("0", 0),
        ("12", 12),
        ("aaaa2", 1),
        ("AAAA2", 1),
        ("aaaa1".ljust(32, "0"), 0),
        ("0001", 12),
        ("10.0.0.2:7450", 1),
        ("10.0.0.4:7450", 4),  # the one that has left had the same address
        ("dddd", 5),
    ],
)
def test_a_segment_is_named_by_index_id_beginning_of_the_id_or_address(text: str, index: int) -> None:
    assert select_segment(SEGMENTS, text)["index"] == index


def test_what_fits_several_segments_lists_them_and_is_a_usage_error() -> None:
    with pytest.raises(AdminFailure, match=r"ambiguous.*0 \(aaaa1.*10\.0\.0\.1:7450.*1 \(aaaa2") as refused:
        select_segment(SEGMENTS, "aaaa")
    assert refused.value.code == 2


@pytest.mark.parametrize("text", ["7", "aaa", "eeee", "10.0.0.9:7450", ""])
def test_a_segment_that_is_not_there_lists_what_is(text: str) -> None:
    with pytest.raises(AdminFailure, match=r"no segment fits .*10\.0\.0\.5:7450") as refused:
        select_segment(SEGMENTS, text)
    assert refused.value.code == 1


NAMESPACES: list[dict[str, Any]] = [
    {"id": "a1b2c3d4e5f60708", "name": "llama", "epoch": 0},
    {"id": "a1b2ffffffffffff", "name": "llama-70b", "epoch": 3},
    {"id": "1111111111111111", "name": "twice", "epoch": 0},
    {"id": "2222222222222222", "name": "twice", "epoch": 0},
]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("llama", "a1b2c3d4e5f60708"),  # a whole name comes before the beginning of another
        ("llama-", "a1b2ffffffffffff"),
        ("A1B2C3D4E5F60708", "a1b2c3d4e5f60708"),
        ("a1b2f", "a1b2ffffffffffff"),
        ("1111", "1111111111111111"),
    ],
)
def test_a_namespace_is_named_by_id_name_or_the_beginning_of_one(text: str, ns: str) -> None:
    assert select_namespace(NAMESPACES, text)["id"] == ns


@pytest.mark.parametrize(
    ("text", "code"), [("twice", 2), ("a1b2", 2), ("tw", 2), ("", 1), ("x", 1), ("111", 1)]
)
def test_a_namespace_that_is_none_or_several_is_refused(text: str, code: int) -> None:
    with pytest.raises(AdminFailure, match="fits") as refused:
        select_namespace(NAMESPACES, text)
    assert refused.value.code == code


def test_candidates_that_are_many_are_not_all_listed() -> None:
    many = [segment(i, f"aaaa{i:03x}", f"10.0.0.{i}:7450") for i in range(200)]
    with pytest.raises(AdminFailure, match="and 190 more"):
        select_segment(many, "aaaa")


# ---- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--master", "::1:7441"), "--master: '::1:7441': write an IPv6 address in brackets, as [::1]:7441"),
        (("--master", "http://a:7441"), "write 'a:7441'"),
        (("--master", ","), "--master: needs 1..64 addresses"),
        (("--timeout-ms", "1"), "--timeout-ms: input should be greater than or equal to 100"),
        (("--token", "x", "--token-file", "y"), "keep one"),
        (("--token", "two words"), "visible ASCII"),
        (("--token-file", "/nonexistent/token"), "--token-file: /nonexistent/token can't be read"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(arguments: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(app, ["admin", "status", *arguments])
    assert result.exit_code == 2
    assert text in result.stderr
    assert result.stderr.strip().count("\n") == 0 and result.stdout == ""


# ---- what is printed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_each_admin_command_teaches_with_an_example(name: str) -> None:
    result = CliRunner().invoke(app, ["admin", *name.split(), "--help"], env={"TERM": "dumb"})
    assert result.exit_code == 0
    assert re.search(rf"Example:\s+kvstore admin {name}\b", result.output)
    for option in ("--master", "--token", "--token-file", "--timeout-ms", "--json"):
        assert option in result.output


def test_nothing_of_a_table_is_cut_off_and_no_name_steers_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(("NAME", "N>"), [("x" * 150, 1), ("[bold]\x1b[31mred\n", 22)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "N"]
    assert lines[1].endswith("x   1") and "x" * 150 in lines[1]
    assert lines[2].startswith("[bold]\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}")
    assert printable("Llama 3.1 ü") == "Llama 3.1 ü"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, "-"),
        (0, "0.0 s"),
        (1_234, "1.2 s"),
        (119_000, "119.0 s"),
        (180_000, "3 min"),
        (86_400_000, "24 h"),
    ],
)
def test_times_are_for_people(milliseconds: int | None, text: str) -> None:
    assert duration(milliseconds) == text


def test_what_a_standby_does_not_know_is_null_and_not_zero() -> None:
    view = segment_view(pb.Segment(index=1, host="::1", tcp_port=7450, state=3))
    assert (view["address"], view["state"]) == ("[::1]:7450", "draining")
    assert {view[name] for name in ("attached", "draining", "pinned_bytes", "heard_ms", "version")} == {None}
    assert size(view["pinned_bytes"]) == "-"
    assert segment_view(pb.Segment(pinned_bytes=0))["pinned_bytes"] == 0
    assert segment_view(pb.Segment(state=9))["state"] == "state 9"


@pytest.mark.parametrize(
    ("state", "attached", "draining", "text"),
    [
        ("live", True, False, "live"),
        ("live", False, False, "live, not attached"),
        ("draining", False, True, "draining, not attached"),
        ("suspect", False, True, "suspect, draining"),
        ("live", None, None, "live"),
    ],
)
def test_a_state_tells_what_it_hides(
    state: str, attached: bool | None, draining: bool | None, text: str
) -> None:
    assert shown_state({"state": state, "attached": attached, "draining": draining}) == text


def test_an_identity_is_summed_up_in_a_line() -> None:
    identity = {"kind": "kv_pages", "format_version": 1, "name": "x", "page_size": 64, "model": "m" * 80}
    assert identity_summary(identity, 32) == "kv_pages page_size=64 model=m..."
    assert identity_summary({"kind": "named", "name": "chat"}) == "named"


@pytest.mark.parametrize(
    ("text", "shard"),
    [
        ("", WHOLE),
        ("0:32", Shard(0, 32)),
        ("0:32:1:4", Shard(0, 32, 1, 4)),
        ("8:8:0:1:1:2", Shard(8, 8, 0, 1, 1, 2)),
    ],
)
def test_a_shard_is_written_with_colons(text: str, shard: Shard) -> None:
    assert parse_shard(text) == shard


@pytest.mark.parametrize(
    "arguments",
    [
        ("k", "--page"),
        ("0" * 64, "--page", "--fingerprint"),
        ("0" * 64, "--page", "--shard", "0:x"),
        ("0" * 64, "--page", "--shard", "0:1:2:3:4:5:6"),
        ("0" * 64, "--page", "--shard", "0:1:4:4"),
        ("0" * 31, "--fingerprint"),
        ("0" * 30, "--fingerprint"),
        ("k", "--shard", "0:32"),
        ("x" * 257,),
    ],
)
def test_a_key_that_can_be_none_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["admin", "stat", *arguments, "--master", "127.0.0.1:9"])
    assert result.exit_code == 2
    assert result.stderr.startswith("kvstore: ")


# ---- the verdict -------------------------------------------------------------------------------------------


def leader(address: str = "a:1", **fields: Any) -> MasterView:
    return MasterView(
        address, pb.Status(role=pb.ROLE_LEADER, leader_address=address, cluster_id=b"c" * 16, **fields)
    )


def standby(address: str = "b:1", **fields: Any) -> MasterView:
    values = {"leader_address": "a:1", "cluster_id": b"c" * 16, **fields}
    return MasterView(address, pb.Status(role=pb.ROLE_STANDBY, **values))


def test_a_leader_without_problems_and_its_standbys_are_healthy() -> None:
    view = cluster_view([standby(lag_revisions=0), leader(term=3)])
    assert (view["healthy"], view["problems"], view["answered_by"]) == (True, [], "a:1")
    assert [master["role"] for master in view["masters"]] == ["standby", "leader"]
    assert (view["term"], view["leader"]) == (3, "a:1")


@pytest.mark.parametrize(
    ("masters", "problem"),
    [
        ([standby()], "no master leads"),
        ([leader(problems=["1 segment is suspect"])], "1 segment is suspect"),
        ([leader(), standby(problems=["not ready: x"])], "master b:1: not ready: x"),
        ([leader(), MasterView("c:1", None, "connection refused", True)], "master c:1 does not answer: conn"),
        ([leader(), standby(cluster_id=b"d" * 16)], "different clusters"),
        ([leader(), leader("d:1")], "several masters say that they lead"),
    ],
)
def test_what_is_wrong_makes_the_store_degraded(masters: list[MasterView], problem: str) -> None:
    view = cluster_view(masters)
    assert not view["healthy"]
    assert any(text.startswith(problem) or problem in text for text in view["problems"])
