"""The Dockerfiles, as far as that goes without a Docker engine: what they copy, whom they run as, and their pip lines."""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from kvstore import __version__
from kvstore.cli.main import app

from .dockerfiles import Instruction, copied_from_context, is_ignored, read_dockerfile
from .manifests import REPOSITORY, base, containers, find, pod_spec, workloads

DOCKER = REPOSITORY / "deploy" / "docker"
FILES = ("Dockerfile", "sglang.Dockerfile")
# Of native/: what tests and fuzzing are made of.
ONLY_FOR_TESTS = ("tests", "fuzz")
HEALTHCHECK = DOCKER / "healthcheck.py"
NONROOT = "10001:10001"
# cmake and ninja may be the system's or lie beside this Python.
BUILD_ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
# Where the build requirements are installed already, nothing is fetched.
NO_ISOLATION = ["--no-build-isolation"] if importlib.util.find_spec("scikit_build_core") else []

each_file = pytest.mark.parametrize("name", FILES)


@each_file
def test_everything_that_is_copied_exists_and_is_not_ignored(name: str) -> None:
    sources = copied_from_context(read_dockerfile(DOCKER / name))
    assert sources
    for source in sources:
        assert (REPOSITORY / source).exists(), source
        assert not is_ignored(DOCKER / f"{name}.dockerignore", source), source


@each_file
def test_the_build_context_holds_nothing_that_is_not_copied(name: str) -> None:
    sources = copied_from_context(read_dockerfile(DOCKER / name))
    for path in (
        "build/x",
        ".git/config",
        "tests/conftest.py",
        *(f"native/{folder}/CMakeLists.txt" for folder in ONLY_FOR_TESTS),
        ".venv/bin/python",
        "kvstore/cli/__pycache__/a.pyc",
    ):
        assert is_ignored(DOCKER / f"{name}.dockerignore", path), path
    kept = [
        line[1:]
        for line in (DOCKER / f"{name}.dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    assert sorted(kept) == sorted(sources)


@each_file
def test_base_images_have_a_tag_that_is_not_latest(name: str) -> None:
    stages = read_dockerfile(DOCKER / name)
    arguments = dict(
        instruction.text.split("=", 1)
        for stage in stages
        for instruction in stage
        if instruction.name == "ARG"
    )
    for stage in stages:
        image = next(i for i in stage if i.name == "FROM").words[0]
        for argument, value in arguments.items():
            image = image.replace(f"${{{argument}}}", value)
        tag = image.rpartition(":")[2]
        assert tag not in ("", "latest", image), image


@each_file
def test_no_command_goes_through_a_shell_of_its_own_or_fetches_by_hand(name: str) -> None:
    for stage in read_dockerfile(DOCKER / name):
        for instruction in stage:
            if instruction.name == "RUN":
                for command in instruction.commands:
                    assert command[0] in ("apt-get", "rm", "python", "python3", "groupadd", "useradd"), (
                        command
                    )
                    assert not set("|;`$><*") & set("".join(command)), command
            if instruction.name in ("ENTRYPOINT", "CMD"):
                assert instruction.text.startswith("["), "exec form: signals reach the server"


def test_the_server_image_runs_as_the_user_that_the_manifests_name() -> None:
    final = read_dockerfile(DOCKER / "Dockerfile")[-1]
    users = [instruction.text for instruction in final if instruction.name == "USER"]
    assert users == [NONROOT]
    for workload in workloads(base()):
        container = pod_spec(workload)["containers"][0]
        context = {**pod_spec(workload)["securityContext"], **container["securityContext"]}
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == NONROOT
    created = [command for i in final if i.name == "RUN" for command in i.commands if command[0] == "useradd"]
    assert len(created) == 1 and created[0][created[0].index("--uid") + 1] == NONROOT.split(":")[0]


def test_only_the_wheel_reaches_the_runtime_image() -> None:
    final = read_dockerfile(DOCKER / "Dockerfile")[-1]
    assert copied_from_context([final]) == ["deploy/docker/healthcheck.py"]
    assert not [
        command for i in final if i.name == "RUN" for command in i.commands if command[0] == "apt-get"
    ]
    (install,) = [c for i in final if i.name == "RUN" for c in i.commands if c[:2] == ["python", "-m"]]
    assert {"--no-index", "--find-links=/wheels", "hicache-kvstore[server]"} <= set(install)


def test_exposed_ports_are_those_of_the_containers() -> None:
    final = read_dockerfile(DOCKER / "Dockerfile")[-1]
    exposed = {int(word) for i in final if i.name == "EXPOSE" for word in i.words}
    objects = base()
    used = {
        port["containerPort"]
        for name in ("StatefulSet/kvstore-master", "DaemonSet/kvstore-segment")
        for container in containers(find(objects, name))
        for port in container.get("ports", ())
    }
    assert exposed == used


def test_the_entry_point_is_a_command_of_the_wheel() -> None:
    final = read_dockerfile(DOCKER / "Dockerfile")[-1]
    (entry,) = [i.text for i in final if i.name == "ENTRYPOINT"]
    assert entry == '["kvstore"]'
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert {"master", "segment"} <= set(commands)


# ---- pip lines ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The builder's /src: exactly what the Dockerfile copies of what the build context holds."""
    directory = tmp_path_factory.mktemp("src")
    ignore_file = DOCKER / "Dockerfile.dockerignore"

    def ignored(folder: str, names: list[str]) -> list[str]:
        inside = Path(folder).relative_to(REPOSITORY)
        return [name for name in names if is_ignored(ignore_file, str(inside / name))]

    builder = read_dockerfile(DOCKER / "Dockerfile")[0]
    for source in copied_from_context([builder]):
        origin = REPOSITORY / source
        if origin.is_dir():
            shutil.copytree(origin, directory / source, ignore=ignored)
        else:
            shutil.copy(origin, directory / source)
    return directory


def test_the_pip_lines_build_a_wheel_of_what_is_copied_and_install_it(context: Path, tmp_path: Path) -> None:
    """The builder's and the runtime's, with paths of this test. The native part is left out here:
    tests/packaging compiles it into a wheel, and the next test sees to it that the build finds all that it reads.
    """
    builder, final = read_dockerfile(DOCKER / "Dockerfile")
    build, install = pip_line(builder, "wheel"), pip_line(final, "install")
    wheels = tmp_path / "wheels"
    run_pip(
        build, wheels, context, ["--no-deps", "--no-build-isolation", "--config-settings=wheel.cmake=false"]
    )
    (wheel,) = wheels.iterdir()
    assert wheel.name.startswith("hicache_kvstore-")

    target = tmp_path / "installed"
    run_pip(install, wheels, tmp_path, ["--no-deps", f"--target={target}"])
    shown = subprocess.run(
        [sys.executable, "-S", "-c", "import kvstore; print(kvstore.__file__, kvstore.__version__)"],
        env={"PYTHONPATH": str(target), "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split() == [f"{target}/kvstore/__init__.py", __version__]
    assert (target / "kvstore_client").is_dir() and (target / "hicache_adapter").is_dir()


def test_the_native_build_finds_everything_it_reads_among_what_is_copied(
    context: Path, tmp_path: Path
) -> None:
    """Configures, generates the stubs, and compares what would be compiled with the sources that there are."""
    nanobind = subprocess.run(
        [sys.executable, "-m", "nanobind", "--cmake_dir"], capture_output=True, text=True, check=True
    ).stdout.strip()
    configured = subprocess.run(
        [
            "cmake",
            *("-S", str(context), "-B", str(tmp_path), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"),
            *(f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind}"),
            *("-DSKBUILD_PROJECT_NAME=hicache-kvstore", f"-DSKBUILD_PROJECT_VERSION={__version__}"),
        ],
        env=BUILD_ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert configured.returncode == 0, configured.stderr
    stubs = subprocess.run(
        ["cmake", "--build", str(tmp_path), "--target", "proto_stubs"],
        env=BUILD_ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert stubs.returncode == 0, stubs.stdout + stubs.stderr
    assert (tmp_path / "proto_stubs/kvstore/v1/control_pb2.py").is_file()
    compiled = {Path(entry["file"]) for entry in json.loads((tmp_path / "compile_commands.json").read_text())}
    ours = {path.relative_to(context) for path in compiled if path.is_relative_to(context)}
    assert ours == {
        path.relative_to(REPOSITORY)
        for path in (REPOSITORY / "native").rglob("*.cpp")
        if path.relative_to(REPOSITORY / "native").parts[0] not in ONLY_FOR_TESTS
    }


def pip_line(stage: list[Instruction], verb: str) -> list[str]:
    (line,) = [
        command
        for instruction in stage
        if instruction.name == "RUN"
        for command in instruction.commands
        if command[:4] == ["python", "-m", "pip", verb]
    ]
    return line


def run_pip(line: list[str], wheels: Path, directory: Path, more: list[str]) -> None:
    words = [word.replace("/wheels", str(wheels)) for word in line[1:]]
    more = [*more, "--disable-pip-version-check", "--quiet"]
    tried = subprocess.run(
        [sys.executable, *words, *more], cwd=directory, env=BUILD_ENVIRONMENT, capture_output=True, text=True
    )
    assert tried.returncode == 0, tried.stderr[-4000:]


# ---- the health check -------------------------------------------------------------------------------------------------


class _Status(http.server.BaseHTTPRequestHandler):
    code = 200

    def do_GET(self) -> None:
        self.send_response(self.code if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def status_port() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Status)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def healthcheck(ports: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HEALTHCHECK)],
        env={"KVSTORE_HEALTH_PORTS": ports},
        capture_output=True,
        text=True,
        timeout=20,
    )


def test_the_health_check_is_well_when_one_of_the_ports_answers(status_port: int) -> None:
    assert healthcheck(f"1,{status_port}").returncode == 0


def test_the_health_check_says_why_it_is_not_well(status_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Status, "code", 503)
    answer = healthcheck(f"1,{status_port}")
    assert answer.returncode == 1
    assert "Connection refused" in answer.stderr and "HTTP 503" in answer.stderr


def test_the_health_check_is_the_file_that_the_image_declares_for_the_ports_of_the_servers() -> None:
    final = read_dockerfile(DOCKER / "Dockerfile")[-1]
    (copied,) = [i for i in final if i.name == "COPY"]
    (declared,) = [i for i in final if i.name == "HEALTHCHECK"]
    assert Path(copied.words[1]).name in declared.text
    assert copied.flags["chmod"] == "0755" and HEALTHCHECK.read_text().startswith("#!/usr/bin/env python3\n")
    assert '"7442,7451"' in HEALTHCHECK.read_text()
