"""Where RDMA can't be had: here, because the libucx wheel has no verbs and there is no device. It must be said once and clearly, the
pages go over TCP unless RDMA is required, and the process is as it was before UCX was loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore_client import Client
from kvstore_client.errors import ConfigError
from support import ucx
from support.processes import Cluster, segment_metrics

TIMEOUT_S = 60


def run_python(program: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs the program in a process of its own: UCX stays as it was first opened."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("UCX_", "KVSTORE_"))}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_opening_ucx_leaves_signal_handlers_environment_and_standard_output_alone() -> None:
    program = """
import json, os, re, signal, sys, threading
threading.Thread(target=bool).start()  # glibc takes a signal of its own with the first thread
signal.signal(signal.SIGHUP, lambda *_: None)
def signals():
    return re.findall(r"Sig(?:Blk|Ign|Cgt):\\s+(\\w+)", open("/proc/self/status").read())
before, environ = signals(), dict(os.environ)
from kvstore_client import Client
client = Client("127.0.0.1:9", rdma="auto", rdma_library=sys.argv[1])
assert client.stats()["rdma_refused"] == 0, "UCX is open"
print(json.dumps([signals() == before, dict(os.environ) == environ]))
os.system("env | grep ^UCX_ | sort")
"""
    ran = run_python(program, ucx.library(), **ucx.UNSAFE_ENV)
    assert ran.returncode == 0, ran.stderr
    # What the user has set reaches the children, what we set to load the library does not.
    assert ran.stdout.splitlines() == ["[true, true]", "UCX_NET_DEVICES=lo"]


def test_a_client_that_requires_rdma_is_refused_with_the_reason_and_the_remedy() -> None:
    program = """
import sys
from kvstore_client import Client
from kvstore_client.errors import ConfigError
try:
    Client("127.0.0.1:9", rdma="required", rdma_library=sys.argv[1])
except ConfigError as error:
    print(error)
"""
    refused = run_python(program, ucx.library()).stdout
    for part in (
        ucx.library(),
        "UCX 1.",
        "InfiniBand",
        "tcp or shared memory",
        "ucx_info -d",
        "/dev/infiniband",
    ):
        assert part in refused
    missing = run_python(program, "/nowhere/libucp.so.0").stdout
    assert "/nowhere/libucp.so.0" in missing and "rdma_library" in missing
    other = run_python(program, sys.executable).stdout
    assert "can't be loaded" in other


def test_an_unknown_rdma_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="rdma"):
        Client("127.0.0.1:9", rdma="yes")


def test_a_second_library_in_one_process_is_refused_by_name() -> None:
    program = """
import sys
from kvstore_client import Client
from kvstore_client.errors import ConfigError
Client("127.0.0.1:9", rdma="auto", rdma_library=sys.argv[1])
try:
    Client("127.0.0.1:9", rdma="required", rdma_library="/elsewhere/libucp.so.0")
except ConfigError as error:
    print(error)
"""
    told = run_python(program, ucx.library()).stdout
    assert ucx.library() in told and "/elsewhere/libucp.so.0" in told


def test_a_forked_child_of_a_process_that_uses_rdma_is_refused_it() -> None:
    program = """
import os, sys
from kvstore_client import Client
from kvstore_client.errors import ConfigError
parent = Client("127.0.0.1:9", rdma="required", rdma_library=sys.argv[1])
child = os.fork()
if child == 0:
    parent.close()
    try:
        Client("127.0.0.1:9", rdma="required", rdma_library=sys.argv[1])
    except ConfigError as error:
        os._exit(7 if "forked" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
Client("127.0.0.1:9", rdma="required", rdma_library=sys.argv[1]).close()
"""
    ran = run_python(program, ucx.library(), **ucx.UNSAFE_ENV)
    assert ran.stdout.split() == ["7"], ran.stderr


def test_with_auto_both_sides_say_so_once_and_pages_go_over_tcp(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "32MiB")
    try:
        cluster.start_master()
        segment = cluster.start_segment(options=("--rdma=auto", f"--rdma-library={ucx.library()}"))
        assert segment_metrics(segment)["data_port_rdma_active"] == 0
        events = [json.loads(line) for line in segment.log().splitlines() if line.startswith("{")]
        refusals = [event for event in events if event["event"] == "transport_refused"]
        assert len(refusals) == 1 and refusals[0]["level"] == "error"
        assert "/dev/infiniband" in refusals[0]["why"]
        program = """
import json, logging, sys
logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
from kvstore_client import Client
client = Client(sys.argv[1], same_host=False, rdma="auto", rdma_library=sys.argv[2], deadline_ms=5000)
namespace = client.namespace("plain")
assert namespace.put("k", b"v" * 100000) and namespace.get("k") == b"v" * 100000
print(json.dumps(client.stats()))
"""
        ran = run_python(program, cluster.masters, ucx.library())
        assert ran.returncode == 0, ran.stderr
        stats = json.loads(ran.stdout)
        assert stats["rdma_refused"] == 1
        assert stats["transport_tcp_bytes_get"] == stats["transport_tcp_bytes_put"] == 100_000
        complaints = [line for line in ran.stderr.splitlines() if line.startswith("kvstore_client ERROR")]
        assert len(complaints) == 1 and "no rdma, pages go another way" in complaints[0]
    finally:
        cluster.close()


def test_a_segment_that_requires_rdma_does_not_start_without_it(tmp_path: Path) -> None:
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "kvstore.cli.main", "segment", "--rdma=required"),
            *(f"--rdma-library={ucx.library()}", f"--data-dir={tmp_path}", "--capacity=16MiB"),
            *("--port=0", "--http-port=-1", "--unix-path=off"),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ran.returncode != 0
    assert "rdma: is required" in ran.stderr and "/dev/infiniband" in ran.stderr
