"""The benchmark harness runs its peers, checks every byte and reports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "peers",
    [
        ["memcpy", "sockets"],
        ["kvstore-tcp", "kvstore-same-host"],
        ["kvstore-same-host-private", "kvstore-etcd"],
    ],
    ids="+".join,
)
def test_the_harness_measures_peers_and_verifies_their_bytes(peers: list[str], tmp_path: Path) -> None:
    report_file = tmp_path / "report.md"
    size = ["--sizes-kib", "64", "--batch", "16", "--repetitions", "2", "--pool-mib", "128"]
    size += ["--load-seconds", "0.3"]
    command = [sys.executable, "-m", "benchmarks", "--peers", *peers, *size, "--out", str(report_file)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    report = report_file.read_text()
    assert report.strip() == done.stdout.strip()
    assert "Pages with a wrong byte: 0." in report
    for peer in peers:
        if peer == "kvstore-etcd":
            assert re.search(r"^\| kvstore-etcd \| \d+ \| \d+ \|", report, re.MULTILINE), (
                report
            )  # commits only
            continue
        for verb in ("put", "get"):
            assert re.search(rf"^\| 64 KiB \| {verb} \| {peer} \| \d+\.\d\d \|", report, re.MULTILINE), report


def test_loads_of_several_clients_are_measured_and_verified(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--peers",
        "kvstore-tcp",
        "--cases",
        "mixed",
        "small",
        "idle",
    ]
    command += ["--batch", "16", "--pool-mib", "128", "--sizes-kib", "64", "--load-seconds", "0.3"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    for clients in (1, 2, 4):
        assert re.search(
            rf"^\| {clients} \| kvstore-tcp \| \d+\.\d\d \|.*\| 0 \| [\d.]+ \|$", done.stdout, re.MULTILINE
        )
    for verb in ("put", "get"):
        assert re.search(rf"^\| {verb} \| kvstore-tcp \| [\d,]+ \|", done.stdout, re.MULTILINE)
    assert re.search(r"^\| kvstore-tcp \| \d+\.\d\d% \|", done.stdout, re.MULTILINE)


def test_a_pool_too_small_for_the_run_is_refused_with_the_size_it_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--peers", "memcpy", "--pool-mib", "64"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert re.search(r"--pool-mib 64: .*allow at least \d+", done.stderr)


def test_the_scale_benchmark_grows_loads_and_restarts_a_master_and_counts_no_wrong_answer(
    tmp_path: Path,
) -> None:
    report_file = tmp_path / "scale.md"
    size = [
        "--clients",
        "20",
        "--segments",
        "3",
        "--pages",
        "60000",
        "--seconds",
        "1",
        "--journal-rate",
        "20",
    ]
    command = [sys.executable, "-m", "benchmarks.scale", *size, "--out", str(report_file)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", report_file.read_text(), re.MULTILINE))
    assert any(re.match(r"growth from 10,000 to \d+,\d+ pages", row) for row in rows)
    assert rows["... answers that were wrong"] == "0"
    assert any(row.startswith("20 clients, ") and "of a core" in rows[row] for row in rows)
    assert any(row.startswith("restart after kill -9") for row in rows)


def test_a_fail_over_is_measured_with_reads_going_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.scale.failover", "--pages", "50000"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^\| kill -9 of the leader until the standby leads \| \d+\.\d\d s", done.stdout, re.MULTILINE
    )
    assert re.search(r"^\| \.\.\. answers that missed a page \| 0 of \d+ \|$", done.stdout, re.MULTILINE), (
        done.stdout
    )
