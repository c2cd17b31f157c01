"""Logging of the servers: one line an event on stderr, as JSON or text, fields attached by `log_event`."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Literal

LogFormat = Literal["json", "text"]


def configure_logging(level: str, log_format: LogFormat) -> None:
    """Replaces the root handlers; call once a process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def log_event(logger: logging.Logger, level: int, event: str, **fields: Any) -> None:
    """`event` is constant text, so that it can be searched for; everything that varies is a field. Bytes
    show as hex."""
    if logger.isEnabledFor(level):
        shown = {key: value.hex() if isinstance(value, bytes) else value for key, value in fields.items()}
        logger.log(level, event, extra={"fields": shown})


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        return super().format(record) + "".join(f" {key}={value}" for key, value in fields.items())
