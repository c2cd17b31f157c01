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

# Settings of earlier releases, and why nobody needs them now: a name that is like one of them would be a wrong guess.
SETTINGS_GONE = {
    "object_bytes_min": "slots come by need",
    "high_watermark": "a segment evicts what it needs",
    "low_watermark": "a segment evicts what it needs",
}


def unknown_variables(environ: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    """A fault for each variable of our prefix that nothing reads. An empty one counts as not set."""
    for name, value in sorted(environ.items()):
        if not name.upper().startswith(PREFIX) or name in known or not value.strip():
            continue
        if not is_service_link(name, value):
            setting = name.upper().removeprefix(f"{PREFIX}SEGMENT_").lower()
            yield f"environment {name}: nothing reads it; {remedy(setting, 'unset it') or suggestion(name.upper(), known, 'unset it')}"


def remedy(setting: str, what: str) -> str:
    """For a setting of a segment that an earlier release had: why it is gone, and to do `what`. Empty for any other name."""
    why = SETTINGS_GONE.get(setting)
    return f"earlier releases had it, and {why}: {what}" if why else ""


def suggestion(name: str, known: Collection[str], otherwise: str) -> str:
    """'did you mean ...?', or where nothing is like it what else to do."""
    meant = nearest(name, list(known))
    return f"did you mean {meant}?" if meant else f"{otherwise} (`kvstore config docs` lists what there is)"
