"""Prefill and decode on servers of their own, pages between them by Mooncake's engine over TCP: HiCache on the prefill server
alone, and with the decode server offloading what it computes.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from sglang_harness.live import (
    PAGE_TOKENS,
    WHOLE_PAGES_TOKENS,
    Answer,
    LiveServer,
    check_close,
    check_equal,
    loaded_tokens,
    new_prompt,
)
from sglang_harness.server import SGLangServer, kvstore_config
from sglang_harness.tiny_model import make_tiny_model

from support.processes import Cluster, segment_metrics
from support.running_cluster import running_cluster
from support.waiting import wait_until

ANSWER_TOKENS = 120
ENVIRONMENT = {
    "SGLANG_HOST_IP": "127.0.0.1",
    "HOST_IP": "127.0.0.1",
    "MC_FORCE_TCP": "1",
    "MOONCAKE_PROTOCOL": "tcp",
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "60",
}
POOL = {"hicache-mem-layout": "page_first_direct", "hicache-io-backend": "direct"}


class Pair:
    """A prefill and a decode server."""

    def __init__(
        self, prefill: SGLangServer, decode: SGLangServer, bootstrap_port: int, store: Cluster
    ) -> None:
        self.prefill, self.decode = prefill, decode
        self.on_prefill = LiveServer(prefill, store)
        self._bootstrap_port = bootstrap_port
        self._store = store

    def ask_anew(self, prompt: list[int], from_storage: int, new_tokens: int = 24) -> Answer:
        """The decode server's answer, both servers with empty caches; the prefill server has loaded so many tokens."""
        for server in (self.prefill, self.decode):
            server.flush()
        meeting = {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self._bootstrap_port,
            "bootstrap_room": random.getrandbits(62),
        }
        with ThreadPoolExecutor(2) as clients:
            asked = [
                clients.submit(server.generate, prompt, new_tokens, 2, **meeting)
                for server in (self.prefill, self.decode)
            ]
            prefilled, decoded = (each.result() for each in asked)
        assert loaded_tokens(prefilled) == from_storage, f"{prefilled['meta_info']}\n{self.prefill.log()}"
        return decoded

    def wait_objects(self, count: int) -> None:
        """Until the store has so many pages."""
        wait_until(
            lambda: segment_metrics(self._store.segments["segment"])["object_count"] >= count,
            f"{count} pages are stored",
            60.0,
        )


@contextmanager
def running_pair(directory: Path, store: Cluster, decode_settings: dict[str, object]) -> Iterator[Pair]:
    model = make_tiny_model(directory / "model")
    config = kvstore_config(store.masters, deadline_ms=5000)
    bootstrap_port = _free_port()
    transfer = {"disaggregation-transfer-backend": "mooncake"}
    prefill_settings = (
        POOL
        | transfer
        | {
            "disaggregation-mode": "prefill",
            "disaggregation-bootstrap-port": bootstrap_port,
        }
    )
    decode_settings = (
        transfer
        | {
            "disaggregation-mode": "decode",
            "enable-hierarchical-cache": None,
            "hicache-storage-prefetch-policy": None,
            "hicache-write-policy": None,
        }
        | decode_settings
    )
    with (
        SGLangServer(
            "prefill", model, directory, config, settings=prefill_settings, environment=ENVIRONMENT
        ) as prefill,
        SGLangServer(
            "decode",
            model,
            directory,
            config if "disaggregation-decode-enable-offload-kvcache" in decode_settings else None,
            settings=decode_settings,
            environment=ENVIRONMENT,
        ) as decode,
    ):
        yield Pair(prefill, decode, bootstrap_port, store)
        for server in (prefill, decode):
            server.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_prefill_server_loads_what_it_has_stored_and_decoding_goes_on_from_it(tmp_path: Path) -> None:
    no_cache = {"hicache-ratio": None, "hicache-mem-layout": None, "hicache-io-backend": None}
    with running_cluster(tmp_path / "store") as store, running_pair(tmp_path, store, no_cache) as pair:
        prompt = new_prompt()
        cold = pair.ask_anew(prompt, from_storage=0)
        pair.on_prefill.wait_stored(WHOLE_PAGES_TOKENS)
        check_equal(pair.ask_anew(prompt, from_storage=WHOLE_PAGES_TOKENS), cold)
        pair.prefill.clear_storage()
        check_equal(pair.ask_anew(prompt, from_storage=0), cold)


def test_a_second_turn_loads_the_prompt_from_the_prefill_server_and_the_answer_from_the_decode_server(
    tmp_path: Path,
) -> None:
    offload = POOL | {"disaggregation-decode-enable-offload-kvcache": True}
    with running_cluster(tmp_path / "store") as store, running_pair(tmp_path, store, offload) as pair:
        prompt = new_prompt(number=200)
        first = pair.ask_anew(prompt, from_storage=0, new_tokens=ANSWER_TOKENS)
        conversation = prompt + first["output_ids"]
        # The last token has no keys and values yet.
        pages = (len(conversation) - 1) // PAGE_TOKENS
        assert pages * PAGE_TOKENS > WHOLE_PAGES_TOKENS
        pair.wait_objects(pages)
        turn = conversation + new_prompt(tokens=20, number=201)
        warm = pair.ask_anew(turn, from_storage=pages * PAGE_TOKENS)
        pair.prefill.clear_storage()
        # What the decode server has stored was computed token by token, and is here computed at once.
        check_close(warm, pair.ask_anew(turn, from_storage=0))
