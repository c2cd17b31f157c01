"""A whole SGLang server (`sglang.launch_server`) on a CPU."""

import json
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from sglang_harness.zygote import Launch, ServerProcess, environment_of, spawn_server, the_zygote

START_TIMEOUT_S = 420.0  # a shared two-core machine imports for a long time
STOP_TIMEOUT_S = 30.0
FLUSH_TIMEOUT_S = 30.0
CLEAR_TIMEOUT_S = 30.0
ADMIN_TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 120.0  # the first one compiles SGLang's hash extension
ADMIN_KEY = "admin key of the tests"


def kvstore_config(masters: str, **options: Any) -> dict[str, Any]:
    """The extra config of a server whose storage this store is. `options`: the adapter's, or SGLang's."""
    return {
        "backend_name": "kvstore",
        "module_path": "hicache_adapter",
        "class_name": "KVStoreHiCache",
        "interface_v1": 1,
        "prefetch_threshold": 16,
        "masters": masters,
    } | options


class SGLangServer:
    """A context manager: the server answers when it is entered and is gone when it exits."""

    def __init__(
        self,
        name: str,
        model: Path,
        log_dir: Path,
        extra_config: dict[str, Any] | None,
        *,
        tp_size: int = 1,
        settings: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        new_interpreters: bool = False,
    ) -> None:
        """`extra_config`: of the storage; None: it starts without one, to be attached later.
        `settings`: options of SGLang's, without the dashes, beside or instead of the usual ones; True is a switch, None
        leaves one out. `environment`: variables of SGLang's. `new_interpreters`: started as users do, and not forked from a
        process that has imported SGLang already.
        """
        self.name = name
        self.port = _free_port()
        self.log_path = log_dir / f"{name}.log"
        self._model = model
        self._extra_config = extra_config
        self._tp_size = tp_size
        self._settings = settings or {}
        self._environment = environment or {}
        self._new_interpreters = new_interpreters
        self._process: ServerProcess | None = None

    def __enter__(self) -> "SGLangServer":
        launch = Launch(self._flags(), environment_of(self._tp_size, self._environment), str(self.log_path))
        self._process = spawn_server(launch) if self._new_interpreters else the_zygote().launch(launch)
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _flags(self) -> list[str]:
        settings: dict[str, Any] = {
            "model-path": self._model,
            "served-model-name": "acme/tiny",
            "device": "cpu",
            "attention-backend": "torch_native",
            "dtype": "float32",
            "page-size": 16,
            "max-total-tokens": 4096,
            "host": "127.0.0.1",
            "port": self.port,
            "admin-api-key": ADMIN_KEY,
            "enable-hierarchical-cache": True,
            "hicache-ratio": 2,
            "hicache-mem-layout": "page_first",
            "hicache-io-backend": "kernel",
            "hicache-write-policy": "write_through",
            "hicache-storage-prefetch-policy": "wait_complete",
            "tp-size": self._tp_size,
            "disable-overlap-schedule": True,
            "skip-server-warmup": True,
            "enable-cache-report": True,
            "enable-metrics": True,
            "sleep-on-idle": True,
        }
        if self._extra_config is not None:
            settings["hicache-storage-backend"] = "dynamic"
            settings["hicache-storage-backend-extra-config"] = json.dumps(self._extra_config)
        flags: list[str] = []
        for name, value in (settings | self._settings).items():
            if value is not None:
                flags += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return flags

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        ends_at = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < ends_at:
            if self._process.has_ended():
                raise AssertionError(f"server {self.name} has ended\n{self.log()}")
            try:
                self._request("/model_info", timeout_s=2)
                return
            except (urllib.error.URLError, OSError):
                self._process.has_ended(within_s=0.1)
        raise AssertionError(f"server {self.name} does not answer after {START_TIMEOUT_S} s\n{self.log()}")

    def generate(
        self, prompt: list[int], new_tokens: int, top_logprobs: int = 0, **more: Any
    ) -> dict[str, Any]:
        """Greedy tokens for the prompt, with log-probabilities (`top_logprobs`: also of so many best tokens at
        each place) and cache report. `more`: further fields of the request.
        """
        sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
        body |= {"top_logprobs_num": top_logprobs, **more}
        try:
            answer: dict[str, Any] = json.loads(self._request("/generate", body, REQUEST_TIMEOUT_S))
        except (urllib.error.URLError, OSError) as error:
            raise AssertionError(f"server {self.name}: {error}\n{self.log()}") from error
        return answer

    def flush(self) -> None:
        """Empties the caches on the device and in the host pool; the storage keeps what it has."""
        # Refused, with status 400, while anything runs; SGLang waits for that to end.
        self._request(f"/flush_cache?timeout={FLUSH_TIMEOUT_S}", {}, FLUSH_TIMEOUT_S + 10)

    def update_weights(self, model: Path, version: str | None) -> bool:
        """Exchanges the weights while the server runs. Whether SGLang has flushed its caches: it refuses to while anything
        runs, and then `flush` is to be called.
        """
        body = {"model_path": str(model), "weight_version": version}
        try:
            self._request("/update_weights_from_disk", body, REQUEST_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            message = error.read().decode()
            if "the cache was not flushed" not in message:
                raise AssertionError(f"{message}\n{self.log()}") from error
            return False
        return True

    def name_weights(self, version: str) -> None:
        """Gives the weights that are served a version."""
        self._request("/update_weight_version", {"new_version": version}, REQUEST_TIMEOUT_S)
        self.flush()

    def clear_storage(self) -> None:
        """Empties the storage."""
        self._request("/hicache/storage-backend/clear", {}, CLEAR_TIMEOUT_S)

    def attach_storage(
        self, extra_config: dict[str, Any], prefetch_policy: str = "wait_complete", **more: str
    ) -> None:
        """Attaches the storage to the running server, with these policies. `more`: further fields of the request.
        StorageRefusedError when it won't.
        """
        self._storage_request(
            "PUT",
            {
                "hicache_storage_backend": "dynamic",
                "hicache_storage_backend_extra_config_json": json.dumps(extra_config),
                "hicache_storage_prefetch_policy": prefetch_policy,
                **more,
            },
        )

    def detach_storage(self) -> None:
        """Detaches it again. StorageRefusedError when it won't."""
        self._storage_request("DELETE")

    def attached_storage(self) -> dict[str, Any]:
        """What is attached, and with which policies."""
        attached: dict[str, Any] = json.loads(self._storage_request("GET"))
        return attached

    def _storage_request(self, method: str, body: dict[str, Any] | None = None) -> bytes:
        try:
            return self._request("/hicache/storage-backend", body, ADMIN_TIMEOUT_S, method)
        except urllib.error.HTTPError as error:
            raise StorageRefusedError(f"{error.code}: {error.read().decode()}") from error

    def metrics(self) -> str:
        """The text of /metrics."""
        return self._request("/metrics", timeout_s=10).decode()

    def _request(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        timeout_s: float = 10.0,
        method: str | None = None,
    ) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {ADMIN_KEY}"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data=data, headers=headers, method=method
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            answer: bytes = response.read()
            return answer

    def log(self, lines: int = 60) -> str:
        """The end of the server's log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def log_text(self) -> str:
        """All of it."""
        return self.log_path.read_text(errors="replace")

    def is_alive(self) -> bool:
        """Whether its first process runs; that one ends when a scheduler dies."""
        return self._process is not None and not self._process.has_ended()

    def stop(self) -> None:
        """SIGTERM to the server's own process group, then SIGKILL to what is left of it. Idempotent."""
        if self._process is None:
            return
        self._process.signal_group(signal.SIGTERM)
        self._process.has_ended(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the server's own process group. Idempotent."""
        if self._process is None:
            return
        self._process.signal_group(signal.SIGKILL)
        assert self._process.has_ended(STOP_TIMEOUT_S), f"server {self.name} does not end"
        self._process = None


class StorageRefusedError(Exception):
    """SGLang has refused to attach or detach the storage: status and reason."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
