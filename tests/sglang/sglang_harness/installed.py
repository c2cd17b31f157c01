"""Whether the installed package is what the checkout holds."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "hicache-kvstore"
# Of the checkout, as they are in the wheel.
PACKAGES = {
    "kvstore": "kvstore",
    "kvstore_client": "client/kvstore_client",
    "hicache_adapter": "hicache_adapter",
}
NATIVE_INPUTS = ("CMakeLists.txt", "pyproject.toml", "native", "proto")


def stale_install(checkout: Path) -> str | None:
    """What is wrong with the installed package; None when it was built from the checkout as it is now.

    Python files must be equal. Of the native module and of generated stubs only the age is known: nothing that they are
    built from may have been written since.
    """
    try:
        installed = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return f"{DISTRIBUTION} is not installed"
    record = Path(str(installed.locate_file("")))
    for package, folder in PACKAGES.items():
        ours, theirs = python_files(checkout / folder), python_files(record / package)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                return f"the installed {package}/{name} is not the one of {checkout / folder}"
    installed_at = max(
        Path(str(file.locate())).stat().st_mtime for file in installed.files or () if file.name == "RECORD"
    )
    for name in NATIVE_INPUTS:
        for path in (checkout / name, *(checkout / name).rglob("*")):
            built_from = path.is_file() and "tests" not in path.relative_to(checkout).parts
            if built_from and path.stat().st_mtime > installed_at:
                return f"{path.relative_to(checkout)} was written after the package was installed"
    return None


def shadowing_package() -> str | None:
    """The first of the packages that would be imported from elsewhere, with the place; None when all are the installed ones."""
    site = Path(str(distribution(DISTRIBUTION).locate_file(""))).resolve()
    for package in PACKAGES:
        found = find_spec(package)
        origin = "nowhere" if found is None or found.origin is None else found.origin
        if not Path(origin).resolve().is_relative_to(site):
            return f"{package} comes from {origin}, not from {site}"
    return None


def python_files(folder: Path) -> dict[str, bytes]:
    """Contents by name, without what the build generates."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*.py")
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    }
