"""The command line of a server is made from its settings: every field an option, one set of rules."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import typer
from typer.testing import CliRunner

from hicache_adapter import AdapterConfig
from kvstore.cli.main import app
from kvstore.cli.settings_options import option_name, with_settings_options
from kvstore.cli.sglang_flags import as_shell, sglang_flags
from kvstore.segment.config import SegmentSettings


def parse(*arguments: str, env: dict[str, str] | None = None) -> tuple[SegmentSettings | None, int, str]:
    """(settings, exit code, stderr) of a command with the segment's options."""
    seen: list[SegmentSettings] = []

    def command(settings: SegmentSettings) -> None:
        seen.append(settings)

    probe = typer.Typer()
    probe.command()(with_settings_options(SegmentSettings, command))
    result = CliRunner().invoke(probe, arguments, env=env)
    return (seen[0] if seen else None), result.exit_code, result.stderr


def test_every_setting_is_an_option_with_help() -> None:
    result = CliRunner().invoke(app, ["segment", "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    for name, field in SegmentSettings.model_fields.items():
        assert option_name(name) in result.output
        assert field.description or name == "log_level"


def test_options_become_settings() -> None:
    settings, code, _ = parse("--masters", "a:1,b:2", "--capacity", "2GiB", "--port", "0", "--lock-memory")
    assert code == 0 and settings is not None
    assert settings.masters == ("a:1", "b:2")
    assert (settings.capacity, settings.port, settings.lock_memory) == ("2GiB", 0, True)


def test_an_option_wins_over_the_environment_and_that_over_the_default() -> None:
    env = {"KVSTORE_SEGMENT_CAPACITY": "3GiB", "KVSTORE_SEGMENT_PORT": "7777"}
    settings, _, _ = parse("--port", "8888", env=env)
    assert settings is not None
    assert (settings.capacity, settings.port, settings.host) == ("3GiB", 8888, "127.0.0.1")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--capacity", "lots"), "--capacity: 'lots' is not a size"),
        (
            ("--masters", "::1:7441"),
            "--masters: '::1:7441': write an IPv6 address in brackets, as [::1]:7441",
        ),
        (("--port", "many"), "--port: Input should be a valid integer"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_option(arguments: tuple[str, ...], text: str) -> None:
    settings, code, stderr = parse(*arguments)
    assert settings is None
    assert code == 2
    assert text in stderr
    assert stderr.strip().count("\n") == 0


@pytest.mark.parametrize("command", ["up", "master", "segment", "admin", "version"])
def test_the_help_of_each_command_teaches_with_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"TERM": "dumb"})
    assert result.exit_code == 0
    assert re.search(rf"Example:\s+kvstore {command}", result.output)


def test_a_secret_is_not_shown_in_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSTORE_SEGMENT_TOKEN", "hunter2")
    result = CliRunner().invoke(app, ["segment", "--help"], env={"TERM": "dumb"})
    assert "hunter2" not in result.output


def test_version_names_what_is_installed() -> None:
    result = CliRunner().invoke(app, ["version"])
    assert result.exit_code == 0
    assert re.fullmatch(
        r"kvstore \d+\.\d+\.\d+ \(Python 3\.\d+\.\d+, \S+, crc32c: \S+\)", result.output.strip()
    )


def test_the_sglang_flags_survive_a_shell_and_hold_what_the_adapter_needs() -> None:
    words = shlex.split(as_shell(sglang_flags("10.0.0.1:7440,10.0.0.2:7440", "/etc/kvstore token")))
    assert words[:4] == [
        "--enable-hierarchical-cache",
        "--hicache-storage-backend",
        "dynamic",
        "--hicache-storage-backend-extra-config",
    ]
    assert json.loads(words[4]) == {
        "backend_name": "kvstore",
        "module_path": "hicache_adapter",
        "class_name": "KVStoreHiCache",
        "interface_v1": 1,
        "masters": "10.0.0.1:7440,10.0.0.2:7440",
        "token_file": "/etc/kvstore token",
    }


def test_the_adapter_accepts_the_printed_config() -> None:
    config = json.loads(sglang_flags("127.0.0.1:7440")[-1])
    assert AdapterConfig.from_extra_config(config, {}).client.masters == (("127.0.0.1", 7440),)
