"""Tests of the installed wheel refuse one that was not built from this checkout."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from importlib.metadata import Distribution
from pathlib import Path
from types import SimpleNamespace

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "sglang" / "sglang_harness" / "installed.py"
spec = importlib.util.spec_from_file_location("installed", SOURCE)
assert spec is not None and spec.loader is not None
installed = importlib.util.module_from_spec(spec)
spec.loader.exec_module(installed)

SOURCES = {
    "kvstore": "kvstore",
    "kvstore_client": "client/kvstore_client",
    "hicache_adapter": "hicache_adapter",
}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout, and the same in tmp_path/site as if installed a moment ago."""
    root, site = tmp_path / "checkout", tmp_path / "site"
    for package, folder in SOURCES.items():
        for directory in (root / folder, site / package):
            directory.mkdir(parents=True)
            (directory / "__init__.py").write_text(f"# {package}\n")
    (site / "kvstore" / "control_pb2.py").write_text("# generated\n")
    for name in ("CMakeLists.txt", "native/a.cpp", "native/tests/test_a.cpp", "proto/v1/a.proto"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
        os.utime(root / name, (1000, 1000))
    info = site / "hicache_kvstore-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hicache-kvstore\nVersion: 1\n")
    (info / "RECORD").write_text("hicache_kvstore-1.dist-info/RECORD,,\n")
    os.utime(info / "RECORD", (2000, 2000))
    monkeypatch.setattr(installed, "distribution", lambda name: Distribution.at(info))
    monkeypatch.setattr(
        installed, "find_spec", lambda name: SimpleNamespace(origin=str(site / name / "__init__.py"))
    )
    return root


def test_what_was_built_from_this_checkout_is_fresh(checkout: Path) -> None:
    assert installed.stale_install(checkout) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda root: (root / "kvstore/__init__.py").write_text("# other\n"), "kvstore/__init__.py"),
        (lambda root: (root / "client/kvstore_client/new.py").write_text(""), "kvstore_client/new.py"),
        (lambda root: (root / "hicache_adapter/__init__.py").unlink(), "hicache_adapter/__init__.py"),
        (lambda root: (root / "native/a.cpp").touch(), "native/a.cpp"),
        (lambda root: (root / "proto/v1/a.proto").touch(), "proto/v1/a.proto"),
    ],
    ids=["edited", "new", "gone", "newer C++", "newer proto"],
)
def test_what_has_changed_since_is_named(
    checkout: Path, change: Callable[[Path], object], named: str
) -> None:
    change(checkout)
    why = installed.stale_install(checkout)
    assert why is not None and named in why


def test_a_changed_native_test_makes_no_wheel_stale(checkout: Path) -> None:
    (checkout / "native/tests/test_a.cpp").touch()
    assert installed.stale_install(checkout) is None


def test_a_package_that_is_imported_from_elsewhere_is_named(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installed.shadowing_package() is None
    elsewhere = SimpleNamespace(origin=str(checkout / "kvstore" / "__init__.py"))
    monkeypatch.setattr(installed, "find_spec", lambda name: elsewhere)
    assert installed.shadowing_package().startswith(f"kvstore comes from {elsewhere.origin}")
