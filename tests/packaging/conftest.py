"""Builds the distribution once a session: an sdist from the work tree, and a wheel from that sdist."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD_TIMEOUT_S = 1500  # two minutes on two idle cores; a busy machine is not a failure
# In the project's own venv the build requirements are installed already; elsewhere pip fetches them into an isolated build.
NO_ISOLATION = ["--no-isolation"] if importlib.util.find_spec("scikit_build_core") else []

# Compiles in a third of the time. The wheel that SGLang's tests install is built from the work tree with the usual flags.
QUICKLY = "--config-setting=cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0"

Runner = Callable[..., str]


@pytest.fixture(scope="session")
def run() -> Runner:
    """Runs a command to its end and returns what it printed; a failure shows all of its output."""

    def run(*command: str | Path, cwd: Path = REPOSITORY) -> str:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def sdist(run: Runner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", *NO_ISOLATION, "--outdir", out)
    (built,) = out.glob("*.tar.gz")
    return built


@pytest.fixture(scope="session")
def sdist_tree(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist unpacked, away from the repository."""
    out = tmp_path_factory.mktemp("tree")
    with tarfile.open(sdist) as archive:
        archive.extractall(out)
    (tree,) = out.iterdir()
    return tree


@pytest.fixture(scope="session")
def wheel(run: Runner, sdist_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", QUICKLY, *NO_ISOLATION, "--outdir", out, cwd=sdist_tree)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def make_venv(run: Runner, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """make_venv(requirement, *pip options) -> the python of a new environment that holds that requirement and nothing else."""

    def make_venv(requirement: str | Path, *options: str) -> Path:
        home = tmp_path_factory.mktemp("venv")
        run(sys.executable, "-m", "venv", "--without-pip", home)
        python = home / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
        run(*pip, "install", "--quiet", *options, requirement)
        return python

    return make_venv
