"""Which environment variables are ours, which Kubernetes makes beside them, and which nothing reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches

from kvstore_client.config import CLIENT_OPTIONS, MASTERS_VARIABLE

PREFIX = "KVSTORE_"
# Read elsewhere than in the settings of the servers.
CONFIG_VARIABLE = "KVSTORE_CONFIG"
OTHER_VARIABLES = (
    CONFIG_VARIABLE,
    MASTERS_VARIABLE,
    *(option.environment for option in CLIENT_OPTIONS.values()),
    "KVSTORE_HEALTH_PORTS",  # deploy/docker/healthcheck.py
    "KVSTORE_UCX_ALLOW_UNSAFE_TRANSPORTS",  # native, for tests
)
# For a Service of the name kvstore-segment every pod of its namespace gets KVSTORE_SEGMENT_SERVICE_HOST,
# KVSTORE_SEGMENT_PORT=tcp://10.0.0.1:7450, KVSTORE_SEGMENT_PORT_7450_TCP_ADDR, ... unless enableServiceLinks is false.
_LINK_NAME = re.compile(
    r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$"
)
_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes made this variable, and not somebody who meant a setting."""
    return bool(_LINK_NAME.search(name) or (name.endswith("_PORT") and _LINK_VALUE.match(value)))


def unknown_variables(environ: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    """A fault for each variable of our prefix that nothing reads. An empty one counts as not set."""
    for name, value in sorted(environ.items()):
        if not name.upper().startswith(PREFIX) or name in known or not value.strip():
            continue
        if not is_service_link(name, value):
            yield f"environment {name}: nothing reads it; {suggestion(name.upper(), known, 'unset it')}"


def suggestion(name: str, known: Collection[str], otherwise: str) -> str:
    """'did you mean ...?', or where nothing is like it what else to do."""
    close = get_close_matches(name, known, n=1, cutoff=0.7)
    return (
        f"did you mean {close[0]}?" if close else f"{otherwise} (`kvstore config docs` lists what there is)"
    )
