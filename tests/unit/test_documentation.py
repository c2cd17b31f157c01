"""The operator's page names every setting and metric, and what the documents refer to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hicache_adapter.config import AdapterConfig
from hicache_adapter.pool_counters import COUNTED
from kvstore.cli.admin.settings import AdminSettings
from kvstore.master.config import MasterSettings
from kvstore.master.layout import ClusterRecord
from kvstore.master.metrics import MasterMetrics
from kvstore.master.state import DirectoryState, Recovered, StateLimits
from kvstore.segment import metrics as segment_metrics
from kvstore.segment.config import SegmentSettings
from kvstore_client import Client
from kvstore_client._native import DirectoryIndex

REPOSITORY = Path(__file__).resolve().parents[2]
OPERATIONS = (REPOSITORY / "docs" / "operations.md").read_text()
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
# What stands in backquotes outside of examples, without the labels of a metric.
PROSE = re.sub(r"^```.*?^```$", "", OPERATIONS, flags=re.DOTALL | re.MULTILINE)
TOKENS = {token.split("{")[0] for token in re.findall(r"`([^`]+)`", PROSE)}


@pytest.mark.parametrize("name", sorted(SegmentSettings.model_fields))
def test_each_segment_setting_is_documented(name: str) -> None:
    assert f"--{name.replace('_', '-')}" in TOKENS


@pytest.mark.parametrize("name", sorted(MasterSettings.model_fields))
def test_each_master_setting_is_documented(name: str) -> None:
    assert f"--{name.replace('_', '-')}" in TOKENS


@pytest.mark.parametrize("name", sorted(AdminSettings.model_fields))
def test_each_admin_setting_is_documented(name: str) -> None:
    assert f"--{name.replace('_', '-')}" in TOKENS


@pytest.mark.parametrize("name", sorted([*AdapterConfig.__dataclass_fields__, "token_file"]))
def test_each_adapter_option_is_documented(name: str) -> None:
    assert name in TOKENS


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
    assert name in TOKENS


def test_each_master_metric_is_documented() -> None:
    metrics = MasterMetrics()
    recovered = Recovered(ClusterRecord(bytes(16)), DirectoryIndex())
    metrics.watch(DirectoryState(0.0, 1, recovered, StateLimits()))
    names = [family.name for family in metrics.registry.collect()]
    assert len(names) > 10
    assert [name for name in names if name not in TOKENS] == []


def test_each_client_counter_is_documented() -> None:
    with Client("127.0.0.1:9") as client:
        names = list(client.stats())
    assert len(names) > 10
    assert [name for name in names if name not in TOKENS] == []


@pytest.mark.parametrize("name", COUNTED)
def test_each_pool_counter_of_the_adapter_is_documented(name: str) -> None:
    assert f"*_{name}" in TOKENS


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
