"""Options of the adapter, from `--hicache-storage-backend-extra-config`: the client's, and a few of its own."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hicache_adapter.byte_order import BYTE_ORDERS, CANONICAL
from kvstore_client.config import CLIENT_OPTIONS, ClientConfig, environment_of_client
from kvstore_client.errors import ConfigError
from kvstore_client.options import Option, Source, choice, integer, options_of, resolve, text
from kvstore_client.suggestions import nearest

logger = logging.getLogger("hicache_adapter")

# SGLang gives up on a storage thread after 10 s, and a call that takes long holds up every later one of its
# kind on all ranks.
CALL_MS_MAX = 5000

SGLANG_KEYS = (
    "allocator",
    "backend_name",
    "class_name",
    "hicache_storage_pass_prefix_keys",
    "interface_v1",
    "module_path",
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "tp_lcm_size",
)
"""What SGLang reads from the same place."""


@dataclass(frozen=True)
class AdapterConfig:
    """Checked options."""

    client: ClientConfig
    interface_v1: bool = False
    """Whether SGLang hands over pages in the pool (its own key), or else flat copies of them."""
    revision: str = text(
        1024,
        "revision of the weights: change it when they change; empty: SGLang's --revision, and what the weights look like",
    )
    tag: str = text(1024, "free text that keeps fleets apart which must not share pages")
    kv_dtype: str = text(1024, "what the KV bytes mean (fp8_e4m3, ...), where SGLang does not say")
    floor_rate_mib_s: int = integer(
        256,
        1,
        1 << 20,
        "MiB/s",
        f"a call that moves pages may take their bytes at this rate on top of deadline_ms, {CALL_MS_MAX} ms at most; one "
        "in which nothing moves ends after deadline_ms. Below your network's share of a rank",
    )
    scheduler_deadline_ms: int = integer(
        50,
        1,
        CALL_MS_MAX,
        "ms",
        "deadline_ms of what SGLang asks on its scheduler's thread, where the whole engine waits (decode instances do)",
    )
    byte_order: str = choice(
        BYTE_ORDERS,
        "order of the stored bytes: native, that of --hicache-mem-layout, or canonical, one for all layouts, TP and PP sizes",
    )
    layers_per_object: int = integer(
        0,
        0,
        0xFFFF,
        "layers",
        "with byte_order canonical: layers of one object, so that other PP sizes find theirs; 0: all of a stage",
    )

    @classmethod
    def from_extra_config(
        cls, extra_config: Mapping[str, Any] | None, environ: Mapping[str, str] = os.environ
    ) -> "AdapterConfig":
        """Checks and converts. ConfigError naming the option: the same on every rank, before anything
        is connected.
        """
        given = dict(extra_config) if isinstance(extra_config, Mapping) else {}
        _refuse_misspelt(given)
        source = Source(given, lambda name: f'extra-config key "{name}"')
        client = ClientConfig.from_sources(_CLIENT_OPTIONS, (source, environment_of_client(environ)))
        own = resolve(_OWN_OPTIONS, (source,))
        if own.get("layers_per_object") and own.get("byte_order") != CANONICAL:
            raise ConfigError("layers_per_object", f"needs byte_order {CANONICAL}", "the extra config")
        return cls(client, bool(given.get("interface_v1", 0)), **own)

    def client_config(self, name: str) -> ClientConfig:
        """The client's share of the options."""
        return replace(self.client, name=name)


_OWN_OPTIONS = options_of(AdapterConfig)
_CLIENT_OPTIONS = {
    **CLIENT_OPTIONS,
    "deadline_ms": replace(CLIENT_OPTIONS["deadline_ms"], high=CALL_MS_MAX),
    "pin_ms": replace(CLIENT_OPTIONS["pin_ms"], default=10_000),
}

ADAPTER_OPTIONS: Mapping[str, Option] = {
    name: option for name, option in (_CLIENT_OPTIONS | _OWN_OPTIONS).items() if name != "name"
}
"""All but the masters, which have a form of their own."""


def _refuse_misspelt(given: Mapping[str, Any]) -> None:
    """ConfigError for a key that means one of ours and is spelt otherwise; a line in the log for one that nobody
    knows, as SGLang's keys grow with its versions.
    """
    ours = ("masters", *ADAPTER_OPTIONS)
    for key in given:
        if key in ours or key in SGLANG_KEYS:
            continue
        meant = nearest(str(key), (*ours, *SGLANG_KEYS))
        if meant in ours:
            raise ConfigError(str(key), f"no such key; did you mean {meant}?", "the extra config")
        hint = f"; did you mean {meant}?" if meant else ""
        logger.warning(
            "kvstore: extra-config key %r is neither ours nor known of SGLang, and is ignored%s", key, hint
        )
