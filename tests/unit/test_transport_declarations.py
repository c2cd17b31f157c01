"""What the native transports declare, and the settings that carry it, agree."""

from __future__ import annotations

import pytest

from kvstore.common.config.segment import SegmentSettings
from kvstore.segment.metrics import _SERVER_COUNTERS, _SERVER_GAUGES
from kvstore_client import Client, _native
from kvstore_client.config import CLIENT_OPTIONS


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(("name", "fallback", "meaning"), _native.transport_options())
def test_each_option_of_a_transport_is_one_of_the_clients(name: str, fallback: str, meaning: str) -> None:
    assert as_text(CLIENT_OPTIONS[name].default) == fallback
    assert meaning


@pytest.mark.parametrize(("name", "fallback", "meaning"), _native.data_port_options())
def test_each_option_of_a_transport_is_a_setting_of_the_segment(
    name: str, fallback: str, meaning: str
) -> None:
    assert as_text(SegmentSettings.model_fields[name].default) == fallback
    assert meaning


def test_each_counter_of_a_transport_is_in_the_clients_statistics_also_while_it_is_off() -> None:
    with Client("127.0.0.1:9") as client:
        stats = client.stats()
    declared = [name for name, _ in _native.transport_counters()]
    assert {"transport_tcp_bytes_get", "transport_same_host_bytes_put", "rdma_failures"} <= set(declared)
    assert {name: stats.get(name) for name in declared} == dict.fromkeys(declared, 0)


def test_each_statistic_of_a_transport_is_a_metric_of_the_segment() -> None:
    declared = {name: can_fall for name, _, can_fall in _native.data_port_stats()}
    assert declared["rdma_sessions"] and not declared["rdma_failures"]
    assert all(name in (_SERVER_GAUGES if falls else _SERVER_COUNTERS) for name, falls in declared.items())


def test_an_option_that_no_transport_declares_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"nonsense: no such option; there are .*same_host"):
        _native.PageClient([("127.0.0.1", 9)], nonsense=True)
