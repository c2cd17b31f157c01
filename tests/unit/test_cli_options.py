"""The command line of a server is made from its settings: every field an option, one set of rules."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hicache_adapter import AdapterConfig
from kvstore.cli.main import app
from kvstore.cli.settings_options import with_settings_options
from kvstore.cli.sglang_flags import as_shell, sglang_flags
from kvstore.common.config.admin import AdminSettings
from kvstore.common.config.master import MasterSettings
from kvstore.common.config.schema import declarations
from kvstore.common.config.segment import SegmentSettings
from kvstore.common.config.up import UpSettings

# The command as a user that passwd doesn't know, as in many containers.
NOBODY = """
import pwd
def unknown(uid):
    raise KeyError(uid)
pwd.getpwuid = unknown
from kvstore.cli.main import main
main()
"""
COMMANDS = (
    (MasterSettings, ("master",)),
    (SegmentSettings, ("segment",)),
    (UpSettings, ("up",)),
    (AdminSettings, ("admin", "status")),
)


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
    for settings_class, command in COMMANDS:
        result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "300", "TERM": "dumb"})
        assert result.exit_code == 0
        for declared in declarations(settings_class):
            for shown in (declared.option, declared.variable, declared.description, declared.group):
                assert shown in result.output, (command, shown)
            if declared.default:
                assert f"[default: {declared.default}]" in result.output
            if declared.bounds:
                assert f"[{declared.bounds}]" in result.output


@pytest.mark.parametrize("command", [("--help",), *((*words, "--help") for _, words in COMMANDS)])
def test_help_needs_neither_a_home_nor_an_entry_in_passwd(command: tuple[str, ...]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", NOBODY, *command],
        env={"PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Usage" in ended.stdout


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
        (("--port", "many"), "--port: input should be a valid integer"),
        (("--config", "/nonexistent"), "/nonexistent: the configuration file can't be read"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_option(arguments: tuple[str, ...], text: str) -> None:
    settings, code, stderr = parse(*arguments)
    assert settings is None
    assert code == 2
    assert text in stderr
    assert stderr.strip().count("\n") == 0


@pytest.mark.parametrize("command", ["up", "master", "segment", "admin", "config", "version"])
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
        "hicache_storage_pass_prefix_keys": True,
        "masters": "10.0.0.1:7440,10.0.0.2:7440",
        "token_file": "/etc/kvstore token",
    }


def test_the_adapter_accepts_the_printed_config() -> None:
    config = json.loads(sglang_flags("127.0.0.1:7440")[-1])
    assert AdapterConfig.from_extra_config(config, {}).client.masters == (("127.0.0.1", 7440),)


# ---- kvstore config ----------------------------------------------------------------------------------------


def config(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["config", *arguments], env=env)
    return result.exit_code, result.stdout, result.stderr


def test_config_show_says_what_is_in_force_and_where_it_came_from_but_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "kvstore.yaml"
    file.write_text("segment:\n  capacity: 8GiB\nadmin:\n  timeout_ms: 900\n")
    env = {"KVSTORE_SEGMENT_PORT": "7777", "KVSTORE_SEGMENT_TOKEN": "hunter2"}
    code, text, _ = config("show", f"--config={file}", env=env)
    assert code == 0 and "hunter2" not in text
    rows = {words[0]: words[1:] for line in text.splitlines() if (words := line.split())}
    assert rows["segment.capacity"] == ["8GiB", f"{file}:2:", "segment.capacity"]
    assert rows["segment.port"] == ["7777", "environment", "KVSTORE_SEGMENT_PORT"]
    assert rows["segment.token"] == ["(hidden)", "environment", "KVSTORE_SEGMENT_TOKEN"]
    assert rows["segment.connections_max"] == ["1024", "default"]
    assert rows["admin.timeout_ms"][0] == "900" and "master.host" in rows
    code, text, _ = config("show", "admin", "--json", f"--config={file}", env=env)
    shown = json.loads(text)
    assert shown["admin.timeout_ms"] == {"value": "900", "origin": f"{file}:4: admin.timeout_ms"}
    assert not any(name.startswith("segment") for name in shown)


def test_config_show_tells_what_an_engine_would_take_from_this_environment() -> None:
    env = {"KVSTORE_MASTERS": "a:1", "KVSTORE_CLIENT_TOKEN": "hunter2", "KVSTORE_CLIENT_DEADLINE_MS": "77"}
    code, text, _ = config("show", "client", env=env)
    assert code == 0 and "hunter2" not in text
    rows = {words[0]: words[1:] for line in text.splitlines() if (words := line.split())}
    assert rows["client.masters"] == ["a:1", "environment", "KVSTORE_MASTERS"]
    assert rows["client.token"] == ["(hidden)", "environment", "KVSTORE_CLIENT_TOKEN"]
    assert rows["client.deadline_ms"] == ["77", "environment", "KVSTORE_CLIENT_DEADLINE_MS"]
    assert rows["client.tcp"] == ["yes", "default"]
    code, _, errors = config("show", "client", env={"KVSTORE_CLIENT_DEADLINE_MS": "0"})
    assert code == 1 and "1..600000" in errors and "KVSTORE_CLIENT_DEADLINE_MS" in errors
    code, _, errors = config("show", "clint")
    assert code == 1 and "master, segment, up, admin, client" in errors


def test_config_check_lists_every_fault_and_fails(tmp_path: Path) -> None:
    file = tmp_path / "kvstore.yaml"
    file.write_text("segment:\n  prot: 1\n  capacity: lots\n")
    code, text, errors = config("check", str(file))
    assert (code, text) == (1, "")
    assert errors.splitlines() == [
        f"kvstore: {file}:2: segment.prot: no such setting; did you mean port?",
        f"kvstore: {file}:3: segment.capacity: 'lots' is not a size: write a number and a unit, as in 512MiB, 8GiB "
        "or 1.5TB",
    ]
    file.write_text("segment:\n  port: 1\n")
    assert config("check", str(file)) == (0, f"{file}: ok, 1 settings\n", "")


def test_an_option_that_is_none_is_refused_with_a_suggestion() -> None:
    result = CliRunner().invoke(app, ["segment", "--prot", "1"])
    assert result.exit_code == 2 and "--port" in result.stderr
