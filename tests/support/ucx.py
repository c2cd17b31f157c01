"""UCX for tests: the library of the libucx wheel, over its tcp transport on loopback, where no RDMA device is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

# Lets kvstore carry pages over UCX's tcp, which nothing but a test may do.
UNSAFE_ENV = {"KVSTORE_UCX_ALLOW_UNSAFE_TRANSPORTS": "1", "UCX_NET_DEVICES": "lo"}


def library() -> str:
    """Path of the wheel's libucp.so.0. AssertionError where the wheel is not installed: it is part of the [test] extra."""
    spec = importlib.util.find_spec("libucx")
    assert spec is not None and spec.origin is not None, "no libucx wheel: pip install '.[test]'"
    path = Path(spec.origin).parent / "lib" / "libucp.so.0"
    assert path.exists(), f"{path} is missing"
    return str(path)
