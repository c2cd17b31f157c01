"""The operator's pages name every setting, metric and log event, and what the documents refer to is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache_adapter.recorder import COUNTED
from kvstore.common.config.reference import reference
from kvstore.common.process_status import ProcessStatus
from kvstore.master.metrics import MasterMetrics
from kvstore.master.state.directory_state import DirectoryState, Recovered, StateLimits
from kvstore.master.state.layout import ClusterRecord
from kvstore.segment import metrics as segment_metrics
from kvstore_client import Client
from kvstore_client._native import DirectoryIndex

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
WIDTH = 110


def tokens_of(page: str) -> set[str]:
    """What stands in backquotes outside of examples, without the labels of a metric."""
    prose = re.sub(
        r"^```.*?^```$", "", (REPOSITORY / "docs" / page).read_text(), flags=re.DOTALL | re.MULTILINE
    )
    return {token.split("{")[0] for token in re.findall(r"`([^`]+)`", prose)}


METRICS = tokens_of("metrics.md")
EVENTS = tokens_of("log-events.md")


def test_the_page_of_all_settings_is_what_the_declarations_say() -> None:
    written = (REPOSITORY / "docs" / "configuration.md").read_text()
    assert written == reference(), "run `kvstore config docs > docs/configuration.md`"


def segment_metric_names() -> list[str]:
    tables = {
        "": ("_STORE_GAUGES", "_STORE_COUNTERS"),
        "data_port_": ("_SERVER_GAUGES", "_SERVER_COUNTERS"),
        "control_": ("_CONTROL_GAUGES", "_CONTROL_COUNTERS"),
    }
    return [
        p + name for p, group in tables.items() for table in group for name in getattr(segment_metrics, table)
    ]


@pytest.mark.parametrize("name", segment_metric_names())
def test_each_segment_metric_is_documented(name: str) -> None:
    assert name in METRICS


def test_each_master_metric_is_documented() -> None:
    metrics = MasterMetrics()
    recovered = Recovered(ClusterRecord(bytes(16)), DirectoryIndex())
    metrics.watch(DirectoryState(0.0, 1, recovered, StateLimits()))
    names = [family.name for family in metrics.registry.collect()]
    assert len(names) > 10
    assert [name for name in names if name not in METRICS] == []


def test_each_metric_of_any_server_is_documented() -> None:
    names = [family.name for family in ProcessStatus("").registry.collect()]
    assert len(names) > 5
    assert [name for name in names if name not in METRICS] == []


def test_each_client_counter_is_documented() -> None:
    with Client("127.0.0.1:9") as client:
        names = list(client.stats())
    assert len(names) > 10
    assert [name for name in names if name not in METRICS] == []


@pytest.mark.parametrize("name", COUNTED)
def test_each_pool_counter_of_the_adapter_is_documented(name: str) -> None:
    assert f"*_{name}" in METRICS


def logged_events() -> Iterator[str]:
    """The text of each event that the servers log; an f-string is cut before what varies."""
    position = {"log_event": 2, "log_throttled": 2, "_log": 1, "Report": 0} | dict.fromkeys(
        ("debug", "info", "warning", "error", "exception", "critical"), 0
    )
    for path in (REPOSITORY / "kvstore").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            is_method = isinstance(node.func, ast.Attribute)
            ours = not is_method or name == "_log" or getattr(node.func.value, "id", "") == "logger"
            if name not in position or not ours:
                continue
            said = node.args[position[name]]
            if isinstance(said, ast.JoinedStr):
                said = said.values[0]
            if isinstance(said, ast.Constant):
                yield str(said.value)


def test_each_log_event_is_in_snake_case_and_documented() -> None:
    events = set(logged_events())
    assert len(events) > 30
    assert [event for event in events if not re.fullmatch(r"[a-z]+(_[a-z]+)*_?", event)] == []
    assert (
        sorted(
            e
            for e in events
            if not any(token == e or (e[-1] == "_" and token.startswith(e)) for token in EVENTS)
        )
        == []
    )


def test_each_documented_log_event_is_logged() -> None:
    code = "\n".join(path.read_text() for path in (REPOSITORY / "kvstore").rglob("*.py"))
    events = {token for token in EVENTS if re.fullmatch(r"[a-z]+(_[a-z]+)+", token)} - {"grace_s"}
    in_parts = {"metadata_space_normal", "metadata_space_tight", "metadata_space_full"}
    assert sorted(event for event in events - in_parts if f'"{event}"' not in code) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_prose_is_wrapped(document: Path) -> None:
    """Tables and examples may be wider."""
    prose = re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "    ", "<!--", "#"))]
    assert [line for line in lines if len(line) > WIDTH] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_make_targets_named_in_documents_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^ {4,})make ([a-z-]+)", document.read_text(), re.MULTILINE))
    assert named - targets == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_tests_named_in_documents_exist(document: Path) -> None:
    text = document.read_text()
    named = {REPOSITORY / path for path in re.findall(r"TESTS=(tests[\w/.]*)", text)}
    named |= {REPOSITORY / "tests/sglang" / name for name in re.findall(r'ARGS="-k (test_\w+\.py)"', text)}
    assert [str(path) for path in named if not path.exists()] == []
