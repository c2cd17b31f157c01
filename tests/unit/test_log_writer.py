"""Who logs never waits for who reads the log; what is left out is counted and told."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator

import pytest

from kvstore.common.log_writer import LINE_BYTES_MAX, LogWriter, QueueHandler, write_all
from support.waiting import wait_until


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    with contextlib.suppress(OSError):
        os.close(reading)
    # Writers find nobody there; the number must not be another file's while one of them still writes.
    for writer in writers:
        assert writer.flush(10.0)
    writers.clear()
    os.close(writing)


writers: list[LogWriter] = []


def writer_to(fd: int, **bounds: int) -> LogWriter:
    writers.append(LogWriter(fd, lost_line, **bounds))
    return writers[-1]


def lost_line(lines: int) -> str:
    return f"lost {lines}"


def fill(fd: int) -> None:
    """Until a pipe takes no more."""
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(fd, b".\n" * 512)
    os.set_blocking(fd, True)


def read_until(fd: int, end: bytes) -> bytes:
    data = b""
    while end not in data:
        data += os.read(fd, 1 << 16)
    return data


def test_lines_come_out_whole_and_in_order(pipe: tuple[int, int]) -> None:
    writer = writer_to(pipe[1])
    for number in range(1000):
        writer.write(f"line {number}")
    data = read_until(pipe[0], b"line 999\n")
    assert data.decode().splitlines() == [f"line {number}" for number in range(1000)]
    assert writer.flush() and writer.lost == 0


def test_a_pipe_that_nobody_reads_costs_the_lines_that_do_not_fit_and_no_time(pipe: tuple[int, int]) -> None:
    fill(pipe[1])
    writer = writer_to(pipe[1], lines_max=100)
    began = time.monotonic()
    for number in range(20_000):
        writer.write(f"line {number} " + "x" * 100)
    assert time.monotonic() - began < 5.0
    assert writer.lost >= 20_000 - 101
    assert not writer.flush(0.05)
    # It says how many, once lines flow again.
    data = read_until(pipe[0], f"lost {writer.lost}\n".encode()).decode()
    kept = [line for line in data.splitlines() if line.startswith("line ")]
    assert len(kept) + writer.lost == 20_000
    writer.write("and on it goes")
    read_until(pipe[0], b"and on it goes\n")
    assert writer.flush()


def test_the_queue_is_bounded_by_bytes_too(pipe: tuple[int, int]) -> None:
    fill(pipe[1])
    writer = writer_to(pipe[1], bytes_max=200_000)
    for _ in range(100):
        writer.write("x" * 10_000)
    assert writer.lost >= 80


def test_what_has_been_written_makes_room_again(pipe: tuple[int, int]) -> None:
    writer = writer_to(pipe[1], bytes_max=1000)
    for _ in range(50):
        writer.write("x" * 100)
        assert writer.flush(10.0)
    assert writer.lost == 0


def test_a_line_without_end_is_cut(pipe: tuple[int, int]) -> None:
    writer = writer_to(pipe[1])
    writer.write("\N{SNOWMAN}" * LINE_BYTES_MAX)
    data = read_until(pipe[0], b"\n")
    assert len(data) <= LINE_BYTES_MAX + 4
    assert data.decode().endswith("\N{SNOWMAN}...\n")


def test_a_reader_that_is_gone_ends_the_writing_and_nothing_else(pipe: tuple[int, int]) -> None:
    writer = writer_to(pipe[1])
    os.close(pipe[0])
    writer.write("nobody hears this")
    wait_until(lambda: writer.flush(0.01), "the writer notices")
    writer.write("nor this")
    assert writer.flush(0.0)


def test_what_is_logged_is_formatted_where_it_is_logged(pipe: tuple[int, int]) -> None:
    writer = writer_to(pipe[1])
    logger = logging.Logger("test")
    logger.addHandler(QueueHandler(writer))
    changing = ["before"]
    logger.warning("it is %s", changing)
    changing[0] = "after"
    assert read_until(pipe[0], b"\n") == b"it is ['before']\n"

    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    logger.warning("it is %s", Unprintable())
    assert writer.lost == 1


def test_a_last_word_waits_a_moment_for_a_reader_and_no_longer(pipe: tuple[int, int]) -> None:
    began = time.monotonic()
    assert not write_all(pipe[1], b"x" * (1 << 20), 0.1)
    assert 0.1 <= time.monotonic() - began < 5.0
