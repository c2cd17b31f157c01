"""What runs in a network of its own hears nobody else's loopback, and runs all the same where none is to be had."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tools import own_network

TOOL = Path(own_network.__file__)

# Prints whether the port given answers, and whether a listener of its own does.
LOOK = """
import socket, sys
def answers(port):
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0
with socket.create_server(("127.0.0.1", 0)) as own:
    print(answers(int(sys.argv[1])), answers(own.getsockname()[1]), len(socket.if_nameindex()))
"""


def look(*command: str) -> tuple[str, str]:
    with socket.create_server(("127.0.0.1", 0)) as outside:
        command = (*command, sys.executable, "-c", LOOK, str(outside.getsockname()[1]))
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip(), done.stderr


def test_nothing_outside_answers_and_what_runs_inside_does() -> None:
    seen, said = look(sys.executable, str(TOOL))
    if said.startswith("in the network that all share"):
        pytest.skip(said)
    assert (seen, said) == ("False True 1", "")
    assert look("env")[0].startswith("True True")


def test_without_a_network_of_its_own_the_command_runs_after_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(flags: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    ran: list[list[str]] = []
    monkeypatch.setattr(own_network, "unshare", refuse)
    monkeypatch.setattr(os, "execvp", lambda file, arguments: ran.append(arguments))
    monkeypatch.setattr(sys, "argv", ["own_network.py", "echo", "hello"])
    own_network.main()
    assert ran == [["echo", "hello"]]
    (line,) = capsys.readouterr().err.splitlines()
    assert "network that all share" in line
    assert "Operation not permitted" in line


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOL), str(tmp_path / "nothing")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == f"{tmp_path / 'nothing'}: No such file or directory"
