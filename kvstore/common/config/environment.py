"""Which environment variables are ours, and which nothing reads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from kvstore_client.config import CLIENT_OPTIONS, MASTERS_VARIABLE
from kvstore_client.service_links import is_service_link
from kvstore_client.suggestions import nearest

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


def unknown_variables(environ: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    """A fault for each variable of our prefix that nothing reads. An empty one counts as not set."""
    for name, value in sorted(environ.items()):
        if not name.upper().startswith(PREFIX) or name in known or not value.strip():
            continue
        if not is_service_link(name, value):
            yield f"environment {name}: nothing reads it; {suggestion(name.upper(), known, 'unset it')}"


def suggestion(name: str, known: Collection[str], otherwise: str) -> str:
    """'did you mean ...?', or where nothing is like it what else to do."""
    meant = nearest(name, list(known))
    return f"did you mean {meant}?" if meant else f"{otherwise} (`kvstore config docs` lists what there is)"
