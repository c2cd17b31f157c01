"""A master as a process of its own, on free ports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.waiting import wait_until

START_TIMEOUT_S = 30.0
COMMAND = ("-m", "kvstore.cli.main", "master")


class MasterProcess:
    """`kvstore master` on free ports; its log is read for the ports it got. `command`: what Python runs instead."""

    def __init__(
        self,
        directory: Path,
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] | None = None,
        **settings: str,
    ) -> None:
        self._log = directory / "master.log"
        values = {
            "directory_port": "0",
            "control_port": "0",
            "http_port": "0",
            "metadata": f"rocksdb://{directory}/metadata",
            **settings,
        }
        variables = {f"KVSTORE_MASTER_{name.upper()}": value for name, value in values.items()}
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], stderr=log, env={**os.environ, **variables, **(environment or {})}
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [event for event in events if event["event"] == name]

    def ready(self) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            assert self.process.poll() is None, self._log.read_text()
            events = self.events("master_ready")
            return events[0] if events else None

        event = wait_until(found, "the master is ready", START_TIMEOUT_S)
        assert event is not None
        return event

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(15)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(15)
