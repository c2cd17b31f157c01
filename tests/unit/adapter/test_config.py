"""Options of the adapter: checked at construction, alike on every rank, never connecting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hicache_adapter import AdapterConfig, ConfigError
from hicache_adapter.config import ADAPTER_OPTIONS


def config_of(environ: dict[str, str] | None = None, **options: Any) -> AdapterConfig:
    return AdapterConfig.from_extra_config(options, environ or {})


def test_the_defaults_need_nothing_but_masters() -> None:
    config = config_of(masters="a:1,b:2")
    client = config.client_config("x")
    assert (client.deadline_ms, client.pin_ms, client.same_host, client.tcp) == (1000, 10_000, True, True)
    assert (client.name, client.masters) == ("x", (("a", 1), ("b", 2)))
    assert (config.interface_v1, config.revision, config.tag, config.kv_dtype) == (False, "", "", "")


def test_masters_may_come_from_the_environment_and_the_extra_config_wins() -> None:
    environ = {"KVSTORE_MASTERS": "env:1"}
    assert config_of(environ).client.masters == (("env", 1),)
    assert config_of(environ, masters="option:1").client.masters == (("option", 1),)


@pytest.mark.parametrize("extra_config", [None, {}, {"backend_name": "kvstore"}, "not a dict"])
def test_missing_masters_are_refused_with_the_remedy(extra_config: Any) -> None:
    with pytest.raises(ConfigError, match="KVSTORE_MASTERS"):
        AdapterConfig.from_extra_config(extra_config, {})


SGLANG: dict[str, Any] = {
    "backend_name": "kvstore",
    "module_path": "hicache_adapter",
    "class_name": "KVStoreHiCache",
    "interface_v1": 1,
    "prefetch_threshold": 16,
    "prefetch_timeout_base": 1,
    "prefetch_timeout_per_ki_token": 0.25,
    "hicache_storage_pass_prefix_keys": True,
    "tp_lcm_size": 8,
    "allocator": "shm",
}


def test_keys_of_sglang_pass_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    assert config_of(masters="a:1", **SGLANG).interface_v1
    assert caplog.records == []


def test_a_key_that_nobody_knows_is_ignored_and_said(caplog: pytest.LogCaptureFixture) -> None:
    config_of(masters="a:1", someone_elses={"a": []})
    (record,) = caplog.records
    assert "'someone_elses'" in record.getMessage()


def test_a_misspelt_key_of_sglangs_is_said_with_the_right_one(caplog: pytest.LogCaptureFixture) -> None:
    config_of(masters="a:1", interface_V1=1)
    (record,) = caplog.records
    assert record.getMessage().endswith("did you mean interface_v1?")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("revison", "revision"),
        ("Tag", "tag"),
        ("tokenfile", "token_file"),
        ("master", "masters"),
        ("deadline-ms", "deadline_ms"),
        ("deadline", "deadline_ms"),
        ("kvdtype", "kv_dtype"),
        ("samehost", "same_host"),
        ("connection", "connections"),
        ("rdma_lib", "rdma_library"),
    ],
)
def test_a_misspelt_key_of_ours_is_refused_with_the_right_one(written: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{written}: .*did you mean {meant}\?") as caught:
        config_of(masters="a:1", **{written: "1"})
    assert caught.value.option == written


@pytest.mark.parametrize("name", sorted(ADAPTER_OPTIONS))
def test_empty_and_null_mean_not_set(name: str) -> None:
    for nothing in ("", None, "  "):
        assert config_of(masters="a:1", **{name: nothing}) == config_of(masters="a:1")


def test_every_option_of_the_client_is_honoured(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    given: dict[str, Any] = {
        "deadline_ms": 11,
        "pin_ms": 12,
        "token_file": str(tmp_path / "token"),
        "same_host": False,
        "tcp": False,
        "rdma": "auto",
        "rdma_library": "/opt/ucx/libucp.so.0",
        "connections": 13,
        "copy_threads": 14,
        "connect_timeout_ms": 15,
        "run_bytes": 1 << 17,
        "location_cache_entries": 16,
        "put_digests": True,
        "replicas": 3,
    }
    own = {
        *("revision", "tag", "kv_dtype", "floor_rate_mib_s", "scheduler_deadline_ms"),
        *("byte_order", "layers_per_object"),
    }
    assert {*given, "token", *own} == set(ADAPTER_OPTIONS)
    client = config_of(masters="a:1", **given).client
    assert {name: getattr(client, name) for name in given} == given
    assert client.token == "secret"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("masters", "no where"),
        ("deadline_ms", 0),
        ("deadline_ms", 5001),
        ("deadline_ms", "fast"),
        ("floor_rate_mib_s", 0),
        ("scheduler_deadline_ms", 0),
        ("scheduler_deadline_ms", 5001),
        ("pin_ms", -1),
        ("revision", 7),
        ("tag", "half a character: \ud800"),
        ("kv_dtype", 8),
        ("same_host", "no"),
        ("tcp", 0),
        ("connections", 1000),
        ("copy_threads", 0),
        ("connect_timeout_ms", 0),
        ("token", 1),
        ("token_file", 3),
        ("token_file", "/nonexistent/token"),
        ("token_file", "a\0b"),
        ("rdma", "on"),
        ("rdma_library", 7),
    ],
)
def test_a_bad_value_is_refused_by_its_name(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{option}: "):
        config_of(**({"masters": "a:1"} | {option: value}))


def test_the_refusal_names_key_value_and_bounds() -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(masters="a:1", deadline_ms=5001)
    problem = 'deadline_ms: needs an integer in 1..5000 ms, not 5001 (from extra-config key "deadline_ms")'
    assert str(caught.value) == problem


def test_a_token_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    assert config_of(masters="a:1", token_file=str(tmp_path / "token")).client.token == "secret"
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        config_of(masters="a:1", token_file=str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="keep one"):
        config_of(masters="a:1", token="x", token_file=str(tmp_path / "token"))
