"""Options of the adapter, from `--hicache-storage-backend-extra-config`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvstore_client.config import (
    ClientConfig,
    check_bool,
    check_int,
    check_text,
)
from kvstore_client.errors import ConfigError
from kvstore_client.protocol import PIN_MS_MAX, TOKEN_BYTES_MAX

# SGLang gives up on a storage thread after 10 s, and a call that takes long holds up every later one of its
# kind on all ranks.
DEADLINE_MS_MAX = 5000


@dataclass(frozen=True)
class AdapterConfig:
    """Validated options. Keys that are not options of ours are SGLang's or another backend's and are
    left alone.
    """

    masters: str
    """`host:port,host:port`; without it the environment variable KVSTORE_MASTERS."""
    token: str = ""
    """Shared secret of the cluster; better `token_file`, which does not show up in a process list."""
    deadline_ms: int = 1000
    """No exists, get or set takes longer; what is not done by then counts as a miss."""
    pin_ms: int = 10_000
    """How long pages that exists has promised are kept from eviction, so that the get that follows
    finds them.
    """
    revision: str = ""
    """Revision of the weights. Change it when the weights change under the same served name. Default:
    SGLang's --revision.
    """
    tag: str = ""
    """Free text that keeps fleets apart which must not share pages."""
    kv_dtype: str = ""
    """What the KV bytes mean (`fp8_e4m3`, ...), where SGLang does not say."""
    same_host: bool = True
    """Use shared memory for segments on the same host."""
    tcp: bool = True
    """Use TCP."""
    rdma: str = "off"
    """`auto`: RDMA through UCX for segments that offer it; `required`: no pages over TCP."""
    connections: int = 2
    """TCP connections to each segment."""
    copy_threads: int = 2
    """Threads that copy pages to and from shared memory."""
    connect_timeout_ms: int = 250
    """A peer that does not accept a connection by then counts as down for a while."""

    @classmethod
    def from_extra_config(
        cls, extra_config: Mapping[str, Any] | None, environ: Mapping[str, str] = os.environ
    ) -> "AdapterConfig":
        """Checks and converts. ConfigError naming the option: the same on every rank, before anything
        is connected.
        """
        given = dict(extra_config) if isinstance(extra_config, Mapping) else {}
        values = {option: given[option] for option in cls.__dataclass_fields__ if option in given}
        values.setdefault("masters", environ.get("KVSTORE_MASTERS", ""))
        if not values["masters"]:
            raise ConfigError(
                "masters",
                'is not set; put "masters": "host:port,host:port" into the extra config '
                "or set KVSTORE_MASTERS",
            )
        if isinstance(values["masters"], (list, tuple)):
            values["masters"] = ",".join(str(master) for master in values["masters"])
        if given.get("token_file"):
            if values.get("token"):
                raise ConfigError("token_file", "is set together with token; keep one of them")
            values["token"] = _read_token(given["token_file"])
        config = cls(**values)
        config._check()
        return config

    def _check(self) -> None:
        check_int("deadline_ms", self.deadline_ms, 1, DEADLINE_MS_MAX)
        check_int("pin_ms", self.pin_ms, 0, PIN_MS_MAX)
        for option in ("revision", "tag", "kv_dtype"):
            check_text(option, getattr(self, option), 1024)
        check_bool("same_host", self.same_host)
        self.client_config("")

    def client_config(self, name: str) -> ClientConfig:
        """The client's share of the options; ConfigError for what the client refuses."""
        return ClientConfig.of(
            self.masters,
            deadline_ms=self.deadline_ms,
            pin_ms=self.pin_ms,
            token=self.token,
            name=name,
            connections=self.connections,
            copy_threads=self.copy_threads,
            same_host=self.same_host,
            tcp=self.tcp,
            rdma=self.rdma,
            connect_timeout_ms=self.connect_timeout_ms,
        )


def _read_token(path: object) -> str:
    if not isinstance(path, str):
        raise ConfigError("token_file", f"needs a path, not {path!r}")
    try:
        with open(path, encoding="utf-8") as file:
            token = file.read(TOKEN_BYTES_MAX + 2).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("token_file", f"{path!r} can't be read: {error}") from error
    if not token:
        raise ConfigError("token_file", f"{path!r} is empty")
    return token
