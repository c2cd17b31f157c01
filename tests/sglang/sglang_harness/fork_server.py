"""A process that has imported what SGLang imports, and nothing of SGLang: it forks a worker for each connection.

Nine tenths of the time that SGLang takes to be imported go to torch, transformers and the like, whatever its version.
Here they are paid once; a worker adds its own version's modules in a second or two.

The first line of a connection says which version the worker is of, where that lies and where to log; then come
commands and answers as in `worker.py`. A worker ends with its connection, the server when its stdin ends.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from typing import Any

# What any of the versions imports. One that is missing here costs each worker its time, no more.
PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch._dynamo.testing",
    "torch._inductor.compile_fx",
    "torch._inductor.select_algorithm",
    "torch.distributed",
    "torch.utils.cpp_extension",
    "torchvision",
    "transformers.image_processing_utils",
    "transformers.modeling_utils",
    "transformers.models.auto",
    "transformers.processing_utils",
    "IPython",
    "PIL.Image",
    "aiohttp",
    "compressed_tensors.quantization",
    "fastapi",
    "functorch.compile",
    "gguf",
    "numpy",
    "openai.types.responses",
    "openai_harmony",
    "orjson",
    "psutil",
    "pydantic",
    "requests",
    "scipy.optimize",
    "triton",
    "uvloop",
    "xgrammar",
    "zmq",
)


def main() -> int:
    """Serves the unix socket that is named on the command line."""
    import cpu_shims

    cpu_shims.install()
    for name in PRELOADED:
        importlib.import_module(name)
    loaded = [name for name in sys.modules if name.partition(".")[0] in ("sglang", "kvstore_client")]
    assert not loaded, f"a fork must import these itself: {loaded}"
    gc.freeze()  # so that a worker's collector leaves these pages shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers that have ended leave nothing
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        connection = _next_worker(listener)
        if connection is None:
            return 0
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return _serve(connection)


def _next_worker(listener: socket.socket) -> socket.socket | None:
    """In a worker: its connection. In the server: None, once stdin has ended."""
    with selectors.DefaultSelector() as selector:
        for source in (listener, sys.stdin):
            selector.register(source, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if sys.stdin in ready:
                return None
            connection, _ = listener.accept()
            if os.fork() == 0:
                return connection
            connection.close()


def _serve(connection: socket.socket) -> int:
    os.dup(
        connection.fileno()
    )  # stays open: its end tells that this process has ended, and not only its commands
    with connection, connection.makefile("r") as commands, connection.makefile("w") as replies:
        told: dict[str, Any] = json.loads(commands.readline())
        with open(told["log"], "wb") as log, open(os.devnull, "rb") as nothing:
            for source, target in ((nothing, 0), (log, 1), (log, 2)):
                os.dup2(source.fileno(), target)
        from sglang_harness import version_worker

        version_worker.run(told["version"], told["overlay"], commands, replies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
