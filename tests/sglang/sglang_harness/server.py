"""A whole SGLang server (`sglang.launch_server`) on a CPU."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

HARNESS_PARENT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 420.0  # a shared two-core machine imports for a long time
STOP_TIMEOUT_S = 30.0
FLUSH_TIMEOUT_S = 30.0
CLEAR_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 120.0  # the first one compiles SGLang's hash extension


class SGLangServer:
    """A context manager: the server answers when it is entered and is gone when it exits."""

    def __init__(
        self,
        name: str,
        model: Path,
        log_dir: Path,
        extra_config: dict[str, Any],
        *,
        tp_size: int = 1,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """`settings`: options of SGLang's, without the dashes, beside or instead of the usual ones."""
        self.name = name
        self.port = _free_port()
        self.log_path = log_dir / f"{name}.log"
        self._model = model
        self._extra_config = extra_config
        self._tp_size = tp_size
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "SGLangServer":
        shims = HARNESS_PARENT / "shims"
        env = os.environ | {
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(shims),
        }
        if self._tp_size > 1:
            env |= {"SGLANG_CPU_OMP_THREADS_BIND": _cores_of_ranks(self._tp_size), "GLOO_SOCKET_IFNAME": "lo"}
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", *self._flags()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=self.log_path.parent,
                start_new_session=True,  # its schedulers end with it
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _flags(self) -> list[str]:
        settings = {
            "model-path": self._model,
            "served-model-name": "acme/tiny",
            "device": "cpu",
            "attention-backend": "torch_native",
            "dtype": "float32",
            "page-size": 16,
            "max-total-tokens": 4096,
            "host": "127.0.0.1",
            "port": self.port,
            "hicache-ratio": 2,
            "hicache-mem-layout": "page_first",
            "hicache-io-backend": "kernel",
            "hicache-write-policy": "write_through",
            "hicache-storage-prefetch-policy": "wait_complete",
            "hicache-storage-backend": "dynamic",
            "hicache-storage-backend-extra-config": json.dumps(self._extra_config),
            "tp-size": self._tp_size,
        } | self._settings
        switches = [
            "--enable-hierarchical-cache",
            "--disable-overlap-schedule",
            "--skip-server-warmup",
            "--enable-cache-report",
            "--enable-metrics",
            "--sleep-on-idle",
        ]
        return switches + [word for name, value in settings.items() for word in (f"--{name}", str(value))]

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        ends_at = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < ends_at:
            if self._process.poll() is not None:
                raise AssertionError(
                    f"server {self.name} ended with {self._process.returncode}\n{self.log()}"
                )
            try:
                self._request("/model_info", timeout_s=2)
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.25)
        raise AssertionError(f"server {self.name} does not answer after {START_TIMEOUT_S} s\n{self.log()}")

    def generate(self, prompt: list[int], new_tokens: int, top_logprobs: int = 0) -> dict[str, Any]:
        """Greedy tokens for the prompt, with log-probabilities (`top_logprobs`: also of so many best tokens at
        each place) and cache report.
        """
        sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
        body["top_logprobs_num"] = top_logprobs
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

    def metrics(self) -> str:
        """The text of /metrics."""
        return self._request("/metrics", timeout_s=10).decode()

    def _request(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 10.0) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            answer: bytes = response.read()
            return answer

    def log(self, lines: int = 60) -> str:
        """The end of the server's log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def log_text(self) -> str:
        """All of it."""
        return self.log_path.read_text(errors="replace")

    def stop(self) -> None:
        """SIGTERM to the server's own session, then SIGKILL to what is left of it. Idempotent."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the server's own session. Idempotent."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_TIMEOUT_S)
        self._process = None


def _cores_of_ranks(ranks: int) -> str:
    """A core for each rank, of those that this process may use: without it SGLang wants a NUMA node a rank."""
    cores = sorted(os.sched_getaffinity(0))
    return "|".join(str(cores[rank % len(cores)]) for rank in range(ranks))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
