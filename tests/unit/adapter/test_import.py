"""The package imports without SGLang and says what is missing only when the backend is asked for."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import importlib.abc, sys

class NoSGLang(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "sglang":
            raise ModuleNotFoundError("No module named 'sglang'", name="sglang")

sys.meta_path.insert(0, NoSGLang())
import hicache_adapter
from hicache_adapter import AdapterConfig, ConfigError
heavy = {"torch", "sglang", "numpy", "grpc", "google.protobuf"}
assert not heavy & set(sys.modules), "importing must stay light"
try:
    hicache_adapter.KVStoreHiCache
except ImportError as error:
    assert "needs SGLang 0.5.6 or newer" in str(error) and "No module named 'sglang'" in str(error), error
else:
    raise AssertionError("the backend was built without SGLang")
try:
    hicache_adapter.nothing
except AttributeError:
    print("fine")
"""


def test_importing_without_sglang_works_and_the_backend_says_what_is_missing() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stdout.strip() == "fine", run.stderr
