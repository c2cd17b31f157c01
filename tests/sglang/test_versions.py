"""The versions of SGLang that versions.toml names, each with its own factory, interface, host pools and controller: what
the adapter needs of them is there, and pages come back byte-equal in another process.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sglang_harness.case import Case
from sglang_harness.version_workers import ForkServer, VersionWorker
from sglang_versions import Version, newest, versions

from support.processes import Cluster

OVERLAYS = Path(sys.prefix) / "versions"
PAGES = 12
TOKENS = PAGES * 16
NOWHERE = "127.0.0.1:1"

Pair = tuple[VersionWorker, VersionWorker]


@pytest.fixture(scope="session")
def fork_server(session_dir: Path) -> Iterator[ForkServer]:
    with ForkServer(session_dir) as server:
        yield server


@pytest.fixture(scope="session", params=versions(), ids=lambda version: str(version.number))
def version(request: pytest.FixtureRequest) -> Version:
    """One after the other; the workers of one are gone when the next comes."""
    found: Version = request.param
    return found


@contextmanager
def started_pair(fork_server: ForkServer, version: Version) -> Iterator[Pair]:
    overlay = OVERLAYS / version.number if version.sha256 else None
    workers = [
        fork_server.worker(f"{version.number}-{name}", version.number, overlay)
        for name in ("writer", "reader")
    ]
    try:
        yield workers[0], workers[1]
    finally:
        for worker in workers:
            worker.stop()


@pytest.fixture(scope="session")
def pair(fork_server: ForkServer, version: Version) -> Iterator[Pair]:
    """A writer and a reader of the version."""
    with started_pair(fork_server, version) as workers:
        yield workers


@pytest.fixture(scope="session")
def newest_pair(fork_server: ForkServer) -> Iterator[Pair]:
    with started_pair(fork_server, newest()) as workers:
        yield workers


def case_for(store: Cluster, name: str, **fields: object) -> Case:
    options = {"masters": store.masters, "deadline_ms": 3000}
    return Case(
        **{"model_name": f"acme/{name}", "options": options, "pages": PAGES, "controller": "base"} | fields
    )


def plain_hashes(case: Case) -> list[str]:
    """The page hashes of a prompt without LoRA or salt: SHA-256 of the hash before and 4 bytes a token."""
    hashes: list[str] = []
    for start in range(0, len(case.tokens), case.page_size):
        page = case.tokens[start : start + case.page_size]
        before = bytes.fromhex(hashes[-1]) if hashes else b""
        hashes.append(hashlib.sha256(before + struct.pack(f"<{len(page)}I", *page)).hexdigest())
    return hashes


def check_round_trip(writer: VersionWorker, reader: VersionWorker, case: Case) -> None:
    written = writer.write(case)
    assert written["hashes"] == plain_hashes(case)
    assert written["stored_tokens"] == TOKENS, writer.log_tail()
    loaded = reader.read(case)
    assert (loaded["hit_tokens"], loaded["loaded_tokens"]) == (TOKENS, TOKENS), reader.log_tail()
    assert loaded["digests"] == written["digests"]
    assert loaded["identity"] == written["identity"]
    assert len(set(written["digests"])) == PAGES  # else the comparison would prove nothing


USUAL = [("mha", "page_first", 1), ("mha", "layer_first", 0), ("mla", "page_first_direct", 1)]
OTHERS = [
    (kind, layout, interface)
    for kind, layouts in {
        "mha": ("layer_first", "page_first", "page_first_direct"),
        "mla": ("layer_first", "page_first", "page_first_direct"),
    }.items()
    for layout in layouts
    for interface in (0, 1)
    if (kind, layout, interface) not in USUAL
]


@pytest.mark.parametrize(
    ("kind", "layout", "interface"),
    [*USUAL, *(pytest.param(*corner, marks=pytest.mark.long) for corner in OTHERS)],
)
def test_pages_come_back_byte_equal_in_another_process_of_the_version(
    pair: Pair, store: Cluster, version: Version, kind: str, layout: str, interface: int
) -> None:
    name = f"{version.number}-{kind}-{layout}-{interface}"
    check_round_trip(*pair, case_for(store, name, kind=kind, layout=layout, interface_v1=interface))


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_the_hybrid_controller_of_the_version_brings_pages_back_too(
    pair: Pair, store: Cluster, version: Version, kind: str
) -> None:
    case = case_for(store, f"{version.number}-hybrid-{kind}", kind=kind, controller="hybrid")
    if version.side_pools:
        check_round_trip(*pair, case)
    else:
        with pytest.raises(AssertionError, match=r"No module named 'sglang\.srt\.mem_cache\.hybrid_cache'"):
            pair[0].write(case)


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_engines_of_the_version_and_of_the_newest_answer_from_each_others_pages(
    pair: Pair, newest_pair: Pair, store: Cluster, version: Version, kind: str
) -> None:
    for writer, reader, way in ((pair[0], newest_pair[1], "up"), (newest_pair[0], pair[1], "down")):
        check_round_trip(writer, reader, case_for(store, f"{version.number}-{kind}-{way}", kind=kind))


def test_the_version_is_as_its_line_in_the_list_says(pair: Pair, version: Version) -> None:
    facts = pair[0].call("facts", Case())
    assert facts["attach"] == version.attach
    assert facts["side_pools"] == version.side_pools
    assert facts["seeded_hashes"] == version.seeded_hashes
    assert facts["storage_metrics"] == [version.metrics_module]
    assert ("enable_storage_metrics" in facts["config_fields"]) == version.metrics_setting
    assert facts["prefix_keys_default"] == version.prefix_keys_default


def test_every_method_that_the_version_declares_takes_its_arguments_by_place_and_by_name(
    pair: Pair, version: Version
) -> None:
    misfits = pair[0].call("misfits", Case())
    assert {"batch_exists", "batch_get_v1", "batch_set_v1", "batch_get", "batch_set"} <= set(
        misfits["declared"]
    )
    assert ("batch_exists_v2" in misfits["declared"]) == version.side_pools
    assert misfits["wrong"] == []


def test_every_method_answers_the_versions_own_arguments_and_rubbish_in_the_right_form(
    pair: Pair, store: Cluster, version: Version
) -> None:
    answers = pair[0].call("call_everything", case_for(store, f"{version.number}-calls"))
    right, wrong = answers["right"], answers["wrong"]
    assert right["batch_exists"] == 0  # nothing was there
    for verb in ("batch_set_v1", "batch_get_v1", "batch_get"):
        assert right[verb] == [True] * 4, verb
        assert wrong[verb] == [False] * 4, verb
    for verb in ("batch_set", "set", "get", "exists"):
        assert right[verb] is True, verb
        assert wrong[verb] is False, verb
    assert wrong["batch_exists"] == wrong["batch_exists_v2"] == 0
    assert wrong["batch_set_v2"] == wrong["batch_get_v2"] == {"mamba": []}
    if version.side_pools:  # this one was never registered
        assert right["batch_set_v2"] == right["batch_get_v2"] == {"indexer": [False] * 4}
    assert answers["after a clear"] == {"batch_exists": 0}


@pytest.mark.parametrize("fault", ["absent store", "inside"])
def test_no_storage_thread_of_the_version_ends_by_a_fault_of_the_store(
    pair: Pair, version: Version, fault: str
) -> None:
    case = Case(pages=PAGES, controller="base", options={"masters": NOWHERE, "deadline_ms": 300})
    seen = pair[0].call("threads_after_failures", case, fault=fault, patience_s=10.0)
    assert (seen["backup"], seen["prefetch"]) == ("0", "0")
    assert len(seen["alive"]) >= 2 and seen["dead"] == []


def test_a_backend_that_raises_ends_the_threads_of_versions_before_0_5_22(
    pair: Pair, version: Version
) -> None:
    case = Case(pages=PAGES, controller="base", options={"masters": NOWHERE})
    seen = pair[0].call("threads_after_failures", case, fault="backend", patience_s=2.0)
    if version.survives_exceptions:
        assert (seen["backup"], seen["prefetch"], seen["dead"]) == ("0", "0", [])
    else:
        assert seen["dead"] == ["backup_thread", "prefetch_thread"]
        assert seen["backup"].startswith("no answer") and seen["prefetch"].startswith("no answer")


def test_a_backend_that_is_attached_anew_finds_what_the_one_before_has_stored(
    pair: Pair, store: Cluster, version: Version
) -> None:
    if not version.attach:
        with pytest.raises(AssertionError, match="detach_storage_backend"):
            pair[0].call("reattach", case_for(store, f"{version.number}-attach"))
        return
    seen = pair[0].call("reattach", case_for(store, f"{version.number}-attach"))
    assert seen == {"old_is_closed": True, "same": True}


def test_storage_metrics_are_of_the_versions_own_type(pair: Pair, store: Cluster, version: Version) -> None:
    case = case_for(store, f"{version.number}-metrics", metrics=True)
    seen = pair[0].call("metrics", case)
    assert seen == {"is_storage_metrics": True, "backup_pgs": [PAGES], "prefetch_pgs": [PAGES]}


def test_nothing_is_stored_or_found_with_lora_where_adapters_share_page_hashes(
    pair: Pair, store: Cluster, version: Version
) -> None:
    seen = pair[0].call("store_with_lora", case_for(store, f"{version.number}-lora"))
    expected = TOKENS if version.seeded_hashes else 0
    assert seen == {"stored_tokens": expected, "hit_tokens": expected}
    named = "LoRA is on" in pair[0].log_tail()
    assert named is not version.seeded_hashes


def test_a_process_ends_although_its_version_never_closes_a_backend(
    fork_server: ForkServer, store: Cluster
) -> None:
    oldest = versions()[0]
    assert not oldest.attach
    worker = fork_server.worker("leaver", oldest.number, OVERLAYS / oldest.number)
    assert worker.write(case_for(store, "leaver"))["stored_tokens"] == TOKENS
    assert worker.stop(timeout_s=20.0), worker.log_tail()
