from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from pathlib import Path

import pytest

from kvstore.segment.errors import SegmentStartError
from kvstore.segment.socket_path import (
    UNIX_PATH_BYTES_MAX,
    default_unix_path,
    keep_unix_path,
    prepare_unix_path,
)
from support.waiting import wait_until

SEGMENT_ID = bytes(range(16))


def test_the_default_lies_in_the_runtime_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_unix_path(SEGMENT_ID) == Path("/run/user/7/kvstore/segment-0001020304050607.sock")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_unix_path(SEGMENT_ID).parent == Path(f"/tmp/kvstore-{os.getuid()}")


def test_the_directory_is_made_for_this_user_only(tmp_path: Path) -> None:
    prepare_unix_path(tmp_path / "new" / "s.sock", private=True)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_a_path_over_the_kernels_limit_is_refused_with_the_limit(tmp_path: Path) -> None:
    base = str(tmp_path) + "/"
    fits = Path(base + "x" * (UNIX_PATH_BYTES_MAX - len(base)))
    prepare_unix_path(fits, private=False)
    with pytest.raises(SegmentStartError, match=r"108 bytes long, the limit is 107.*--unix-path"):
        prepare_unix_path(Path(str(fits) + "x"), private=False)


def test_a_default_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(SegmentStartError, match="only this user"):
        prepare_unix_path(shared / "s.sock", private=True)
    prepare_unix_path(shared / "s.sock", private=False)  # the operator's own choice


def test_a_link_in_place_of_the_default_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(SegmentStartError, match="only this user"):
        prepare_unix_path(tmp_path / "link" / "s.sock", private=True)


def test_the_socket_of_a_dead_process_is_cleared_away_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(SegmentStartError, match="in use by a running process"):
            prepare_unix_path(path, private=False)
    prepare_unix_path(path, private=False)
    assert not path.exists()


def test_the_socket_of_a_process_that_takes_nobody_for_now_is_not_cleared_away(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as waiting:
        listener.bind(str(path))
        listener.listen(0)  # it is stopped, say, and its clients go on coming
        with contextlib.suppress(BlockingIOError):
            while True:
                client = waiting.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(str(path))
        with pytest.raises(SegmentStartError, match="in use by a running process"):
            prepare_unix_path(path, private=False)
        assert path.is_socket()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "s.sock").write_text("precious")
    with pytest.raises(SegmentStartError, match="not a socket"):
        prepare_unix_path(tmp_path / "s.sock", private=False)
    assert (tmp_path / "s.sock").read_text() == "precious"


async def test_a_lost_socket_is_sought_again_until_it_can_be_made_and_each_reason_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s.sock"
    attempts: list[str] = []

    def make() -> None:
        attempts.append("make")
        if len(attempts) < 4:
            raise OSError("no room")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))

    path.write_text("precious")
    keeping = asyncio.create_task(keep_unix_path(path, False, make, interval_s=0.01))
    os.unlink(path)
    await asyncio.to_thread(wait_until, lambda: "unix_socket_remade" in caplog.text, "it is made anew")
    assert len(attempts) == 4
    assert caplog.text.count("unix_socket_lost") == 1
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
