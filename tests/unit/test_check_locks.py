"""tools/check_locks.py: what is touched without its lock is found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools import check_locks

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("clang++") is None, reason="no clang++ on this machine")

QUEUE = """
#include "base/mutex.hpp"
class Queue {{
 public:
  void run() {{ {body} }}
 private:
  void grow() REQUIRES(mutex_) {{ ++size_; }}
  kvstore::Mutex mutex_;
  kvstore::CondVar changed_;
  int size_ GUARDED_BY(mutex_) = 0;
}};
"""


def complaints(tmp_path: Path, body: str) -> str:
    source = tmp_path / "queue.cpp"
    source.write_text(QUEUE.format(body=body))
    return check_locks.complaints(ROOT / "native", source)


@pytest.mark.parametrize(
    "body",
    [
        "const kvstore::MutexLock lock(mutex_); while (size_ == 0) changed_.wait(mutex_); grow();",
        "kvstore::MutexLock lock(mutex_); lock.unlock(); lock.lock(); grow();",
        "const kvstore::MutexLock lock(mutex_); const auto later = [this] { mutex_.assert_held(); grow(); }; later();",
    ],
)
def test_what_is_done_under_the_lock_passes(tmp_path: Path, body: str) -> None:
    assert complaints(tmp_path, body) == ""


@pytest.mark.parametrize(
    "body",
    [
        "++size_;",
        "grow();",
        "changed_.wait(mutex_);",
        "kvstore::MutexLock lock(mutex_); lock.unlock(); ++size_; lock.lock();",
        "mutex_.lock();",
    ],
)
def test_what_is_done_without_the_lock_or_keeps_it_is_found(tmp_path: Path, body: str) -> None:
    assert "-Wthread-safety" in complaints(tmp_path, body).replace("-Werror,", "")


def test_the_sources_with_mutexes_are_looked_at() -> None:
    native = ROOT / "native"
    looked_at = {str(source.relative_to(native)) for source in check_locks.sources(native)}
    assert {"segment/segment_store_batches.cpp", "client/connection/connection_pool.cpp"} <= looked_at
    assert "protocol/keys.cpp" not in looked_at
