"""How a process with a client ends: in a forked child, and in the middle of calls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from kvstore_client import Client
from support.processes import Cluster
from support.running_cluster import paused, running_cluster

# What anything may take beyond its time on a busy two-core machine.
GRACE_S = 0.5


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("store")) as processes:
        yield processes


def run_script(script: str, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """The script as a process of its own, as an engine is one."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=Path(__file__).parents[2],
        check=False,
    )


def assert_clean(outcome: subprocess.CompletedProcess[str]) -> None:
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")


def test_a_forked_child_that_ends_leaves_its_parents_shared_memory_as_it_is(store: Cluster) -> None:
    outcome = run_script(
        """
        import os, random, sys
        from kvstore_client import Client, SharedBuffer

        SIZE = 1 << 20
        value = random.Random(5).randbytes(SIZE)
        buffer = SharedBuffer(SIZE)
        memoryview(buffer)[:] = value
        client = Client(sys.argv[1], deadline_ms=5000)
        space = client.namespace("fork")
        assert space.put("before", buffer)
        child = os.fork()
        if child == 0:
            try:
                memoryview(buffer)
            except BufferError:
                client.close()
                sys.exit(0)  # as a worker of an engine does: everything is taken down
            sys.exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert bytes(buffer) == value
        assert space.put("after", buffer)
        assert space.get("before") == value
        assert space.get("after") == value
        """,
        store.masters,
    )
    assert_clean(outcome)


IN_CALLS = """
    import logging, os, sys, threading, time
    from kvstore_client import Client

    logging.getLogger("kvstore_client").addHandler(logging.NullHandler())  # it may say that the store hangs

    masters, verb, segment = sys.argv[1], sys.argv[2], int(sys.argv[3])
    client = Client(masters, deadline_ms=20000)
    space = client.namespace("exit")
    keys = [f"key {number}" for number in range(64)]
    values = [os.urandom(1 << 16) for _ in keys]
    # What an engine's storage threads work on: raw pointers into memory that goes at exit.
    buffers = [bytearray(1 << 16) for _ in keys]
    assert all(space.batch_put(keys, values)), client.stats()
    if segment:
        os.kill(segment, 19)  # SIGSTOP: the calls below hang
    calls = {
        "get": lambda: space.batch_get_into(keys, buffers),
        "put": lambda: space.batch_put([f"{key} {time.monotonic()}" for key in keys], values),
        "exists": lambda: space.batch_exists(keys, pin_ms=1000),
        "fetch": lambda: space.batch_get(keys),
    }
    started = threading.Semaphore(0)

    def work() -> None:
        while True:
            started.release()
            calls[verb]()

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(4 if segment else 40):
        started.acquire()
"""


@pytest.mark.parametrize("verb", ["get", "put", "exists", "fetch"])
def test_a_process_that_exits_in_the_middle_of_calls_exits_silently_with_0(store: Cluster, verb: str) -> None:
    for _ in range(8):
        assert_clean(run_script(IN_CALLS, store.masters, verb, "0"))


@pytest.mark.parametrize("verb", ["get", "put", "exists"])
def test_a_process_exits_at_once_and_silently_while_its_calls_hang(store: Cluster, verb: str) -> None:
    segment = next(iter(store.segments.values()))
    try:
        began = time.monotonic()
        assert_clean(run_script(IN_CALLS, store.masters, verb, str(segment.pid)))
        assert time.monotonic() - began < 10, "not the deadline of the calls"
    finally:
        segment.resume()


class Late(Exception):
    """What a program's own timeout raises."""


def raise_late(*_: object) -> None:
    raise Late("time is up")


def raise_value_error(*_: object) -> None:
    raise ValueError("as a bad argument would")


def raise_after_giving_way(number: int, _: object) -> None:
    """As timeouts do that put back what was there before."""
    signal.signal(number, signal.SIG_DFL)
    raise_value_error()


def raise_without_arguments(number: int, frame: object) -> None:
    del number, frame
    raise_value_error()


class Alarm:
    """Calls `handler` in `after_s`, as SIGALRM does."""

    def __init__(self, handler: Callable[..., None], after_s: float) -> None:
        self._handler, self._after_s = handler, after_s

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._handler)
        signal.setitimer(signal.ITIMER_REAL, self._after_s)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)


KEYS = [f"key {number}" for number in range(64)]
SIZE = 1 << 16


@pytest.mark.alone
@pytest.mark.parametrize("verb", ["get", "get_into", "put", "exists", "open"])
@pytest.mark.parametrize(
    "handler",
    [raise_late, raise_value_error, partial(raise_late), raise_after_giving_way, raise_without_arguments],
)
def test_what_a_signal_handler_raises_ends_a_call_that_waits(
    store: Cluster, verb: str, handler: Callable[..., None]
) -> None:
    with Client(store.masters, deadline_ms=20_000) as client:
        space = client.namespace("signals")
        assert all(space.batch_put(KEYS, [bytes([1]) * SIZE] * len(KEYS)))
        into = [bytearray(SIZE) for _ in KEYS]
        calls: dict[str, Callable[[], object]] = {
            "get": lambda: space.batch_get(KEYS),
            "get_into": lambda: space.batch_get_into(KEYS, into),
            "put": lambda: space.batch_put([f"{key} {time.monotonic()}" for key in KEYS], into),
            "exists": lambda: space.batch_exists(KEYS, pin_ms=1000),
            "open": lambda: client.namespace("never opened").open(),
        }
        hung = [store.master] if verb == "open" else list(store.segments.values())
        with paused(*hung):
            began = time.monotonic()
            with Alarm(handler, 0.2), pytest.raises((Late, ValueError)):
                calls[verb]()
            assert time.monotonic() - began < 0.2 + 0.1 + GRACE_S
            left = [bytes(memory) for memory in into]
        assert client.stats()["surprises"] == client.stats()["bad_arguments"] == 0
        assert space.batch_get(KEYS) == [bytes([1]) * SIZE] * len(KEYS), "the client goes on working"
        assert [bytes(memory) for memory in into] == left, "nothing is written after the call has ended"


@pytest.mark.parametrize("ends", ["sys.exit(3)", "None"])
def test_a_signal_handler_may_close_the_client_whose_call_it_interrupts(store: Cluster, ends: str) -> None:
    segment = next(iter(store.segments.values()))
    try:
        outcome = run_script(
            f"""
            import logging, os, signal, sys, time
            from kvstore_client import Client

            logging.getLogger("kvstore_client").addHandler(logging.NullHandler())
            client = Client(sys.argv[1], deadline_ms=20000)
            space = client.namespace("handler")
            assert space.put("key", b"value")

            def stop(*_):
                client.close()
                {ends}

            signal.signal(signal.SIGTERM, stop)
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
            os.kill(int(sys.argv[2]), signal.SIGSTOP)  # the call below hangs
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            began = time.monotonic()
            try:
                assert space.get("key") is None
                assert space.get("key") is None  # closed by now
            finally:
                assert time.monotonic() - began < 10, "half of its deadline, on however busy a machine"
            sys.exit(4)
            """,
            store.masters,
            str(segment.pid),
        )
        expected = 4 if ends == "None" else 3
        assert (outcome.returncode, outcome.stdout, outcome.stderr) == (expected, "", "")
    finally:
        segment.resume()


@pytest.mark.alone
def test_ctrl_c_ends_a_call_that_waits(store: Cluster) -> None:
    with Client(store.masters, deadline_ms=20_000) as client:
        space = client.namespace("signals")
        assert space.put("key", b"value")
        with paused(*store.segments.values()):
            began = time.monotonic()
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                space.get("key")
            assert time.monotonic() - began < 0.2 + 0.1 + GRACE_S
            timer.join()


def test_a_forked_child_has_the_namespaces_that_are_open_and_no_closed_ones(store: Cluster) -> None:
    outcome = run_script(
        """
        import os, sys
        from kvstore_client import Client

        client = Client(sys.argv[1], deadline_ms=5000)
        closed = client.namespace("left")
        assert closed.put("key", b"value")
        closed.close()
        space = client.namespace("left")
        assert space.get("key") == b"value"
        last = client.namespace("last")
        last.close()
        child = os.fork()
        if child == 0:
            good = space.get("key") == b"value" and closed.get("key") is None
            good = good and client.namespace("new").put("new", b"new") and last.get("new") is None
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
        """,
        store.masters,
    )
    assert_clean(outcome)


def test_a_forked_childs_client_works_by_itself_and_its_parents_goes_on(store: Cluster) -> None:
    """Other threads are in calls, and hold locks, whenever the process forks; names are looked up, too."""
    port = store.masters.rpartition(":")[2]
    outcome = run_script(
        """
        import os, signal, sys, threading, time
        from kvstore_client import Client

        client = Client(sys.argv[1], deadline_ms=5000)
        space = client.namespace("forks")
        assert space.put("from the parent", b"p" * 10000)
        client.namespace("closed").close()
        late = client.namespace("opened after one was closed")
        assert late.put("key", b"late")
        done = threading.Event()
        wrong = []

        def work(thread: int) -> None:
            number = 0
            while not done.is_set():
                number += 1
                key = f"{thread} {number}"
                if not space.put(key, key.encode() * 1000) or space.get(key) != key.encode() * 1000:
                    wrong.append(key)
                client.stats()

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(3)]
        for thread in threads:
            thread.start()
        for round in range(15):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                good = space.get("from the parent") == b"p" * 10000
                good = good and late.get("key") == b"late"
                good = good and space.put(f"from child {round}", b"c" * 5000)
                good = good and client.namespace("another").put(f"key {round}", b"value")
                client.close()
                os._exit(0 if good else 1)
            assert os.waitpid(child, 0)[1] == 0, round
            assert space.get(f"from child {round}") == b"c" * 5000
        done.set()
        for thread in threads:
            thread.join()
        assert not wrong, wrong[:5]
        assert client.stats()["timeouts"] == 0
        """,
        f"localhost:{port}",
    )
    assert_clean(outcome)
