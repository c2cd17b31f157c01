"""Options of the adapter: checked at construction, alike on every rank, never connecting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hicache_adapter import AdapterConfig, ConfigError


def config_of(environ: dict[str, str] | None = None, **options: Any) -> AdapterConfig:
    return AdapterConfig.from_extra_config(options, environ or {})


def test_the_defaults_need_nothing_but_masters() -> None:
    config = config_of(masters="a:1,b:2")
    assert (config.deadline_ms, config.pin_ms, config.same_host, config.tcp) == (1000, 10_000, True, True)
    assert config.client_config("x").masters == (("a", 1), ("b", 2))


def test_masters_may_come_from_the_environment_and_the_extra_config_wins() -> None:
    environ = {"KVSTORE_MASTERS": "env:1"}
    assert config_of(environ).masters == "env:1"
    assert config_of(environ, masters="option:1").masters == "option:1"


@pytest.mark.parametrize("extra_config", [None, {}, {"backend_name": "kvstore"}, "not a dict"])
def test_missing_masters_are_refused_with_the_remedy(extra_config: Any) -> None:
    with pytest.raises(ConfigError, match="KVSTORE_MASTERS"):
        AdapterConfig.from_extra_config(extra_config, {})


def test_keys_of_sglang_and_of_other_backends_are_left_alone() -> None:
    config_of(
        masters="a:1",
        backend_name="kvstore",
        module_path="hicache_adapter",
        class_name="KVStoreHiCache",
        interface_v1=1,
        prefetch_threshold=16,
        prefetch_timeout_base=1,
        hicache_storage_pass_prefix_keys=True,
        allocator="shm",
        someone_elses={"a": []},
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("masters", "no where"),
        ("deadline_ms", 0),
        ("deadline_ms", 5001),
        ("deadline_ms", "fast"),
        ("pin_ms", -1),
        ("revision", 7),
        ("tag", None),
        ("kv_dtype", 8),
        ("same_host", "no"),
        ("tcp", 0),
        ("connections", 1000),
        ("copy_threads", 0),
        ("connect_timeout_ms", 0),
        ("token", 1),
        ("token_file", 3),
        ("token_file", "/nonexistent/token"),
    ],
)
def test_a_bad_value_is_refused_by_its_name(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{option}: "):
        config_of(**({"masters": "a:1"} | {option: value}))


def test_a_token_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    assert config_of(masters="a:1", token_file=str(tmp_path / "token")).token == "secret"
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        config_of(masters="a:1", token_file=str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="keep one"):
        config_of(masters="a:1", token="x", token_file=str(tmp_path / "token"))
