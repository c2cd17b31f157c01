"""Runs the containers of rendered manifests as local processes, the way a kubelet would.

Each pod has an address of its own in 127.0.0.0/8, so ports, probes and names stay as the manifests have them. Replaced are:
names of pods and Services by addresses, 0.0.0.0 by the pod's address, mount paths by directories of the test, uid 10001 by
ours. The environment is the container's and nothing else. Where the machine allows it (root), a process does not see the
directories of other nodes and pods, and its file system is read-only but for its mounts, as `readOnlyRootFilesystem` says.
"""

from __future__ import annotations

import ctypes
import functools
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.waiting import wait_until

from .kustomize import Object
from .manifests import ContainerInput, PodFacts, http_port

CONTAINER_UID = "10001"
KILL_TIMEOUT_S = 10.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
# A path at the start of a value, after '=', in a URI without a host, or in JSON.
_PATH = re.compile(r"(?:(?<=^)|(?<==)|(?<=://)|(?<=\"))(/[\w.-]+(?:/[\w.-]+)*)")
# A view of the file system of its own: `ro` or `rw` for its root, its mounts, `--`, directories it does not have, `--`, command.
_OWN_VIEW = """
set -e
mount --make-rprivate /
root=$1; shift
while [ "$1" != -- ]; do mount --bind "$1" "$1"; shift; done; shift
while [ "$1" != -- ]; do mount -t tmpfs none "$1"; shift; done; shift
mount -o "remount,$root,bind" /
exec "$@"
"""


@functools.cache
def can_mount() -> bool:
    """True where a process can be given its own view of the file system."""
    command = ["unshare", "--mount", "sh", "-c", _OWN_VIEW, "sh", "ro", "--", "--", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


@dataclass
class Pod:
    """One pod of a workload. `roots` maps each mount path to the directory that stands for `/` around it."""

    workload: Object
    facts: PodFacts
    roots: dict[str, Path]
    log_path: Path
    process: subprocess.Popen[bytes] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> Object:
        spec: Object = self.workload["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Object:
        """The main container: no workload here has several."""
        (container,) = self.spec["containers"]
        return dict(container)

    def local_path(self, path: str) -> str:
        """Where `path` of the container lies on this machine; itself when no mount is concerned."""
        for mount, root in self.roots.items():
            if path == mount or path.startswith(f"{mount}/") or mount.startswith(f"{path}/"):
                return f"{root}{path}"
        return path

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")[-6000:] if self.log_path.exists() else ""


class LocalCluster:
    """Pods on this machine. `addresses` resolves the names of pods and Services. `close` ends every process."""

    def __init__(self, objects: list[Object], directory: Path, network: str) -> None:
        """`network`: the first three numbers of an address block in 127.0.0.0/8 that this test has to itself."""
        self.objects = objects
        self.addresses: dict[str, str] = {}
        self._directory = directory
        self._network = network
        self._pods: list[Pod] = []
        self._memory: list[Path] = []

    def add(self, workload: Object, name: str, node: str = "node-0") -> Pod:
        """A pod of `workload`, not started yet."""
        facts = PodFacts(name, f"{self._network}.{len(self._pods) + 1}", node)
        pod = Pod(workload, facts, self._roots(workload, facts), self._directory / f"{name}.log")
        service = workload["spec"].get("serviceName")
        if service:
            self.addresses[f"{name}.{service}"] = facts.ip
        self._pods.append(pod)
        return pod

    def add_replicas(self, workload: Object) -> list[Pod]:
        """All pods of a StatefulSet."""
        name = workload["metadata"]["name"]
        return [
            self.add(workload, f"{name}-{number}", f"node-{number}")
            for number in range(workload["spec"]["replicas"])
        ]

    def start(self, pod: Pod) -> None:
        """Runs the init containers to their end and starts the container. Does not wait for probes."""
        for container in pod.spec.get("initContainers", ()):
            process = self.spawn(pod, container)
            assert process.wait(30) == 0, f"{pod.facts.name}, {container['name']}:\n{pod.log()}"
        pod.process = self.spawn(pod, pod.container)

    def spawn(self, pod: Pod, container: Object, command: list[str] | None = None) -> subprocess.Popen[bytes]:
        """The container as a process; with `command` another program in its place (environment and mounts stay)."""
        given = ContainerInput(container, self.objects, pod.facts)
        pod.environment = {name: self.localize(pod, value) for name, value in given.environment.items()}
        words = [self.localize(pod, word) for word in (command or given.command)]
        with pod.log_path.open("ab") as log:
            return subprocess.Popen(
                self._with_own_view(pod, container, _program(words)),
                cwd="/",
                env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **pod.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
            )

    def localize(self, pod: Pod, text: str) -> str:
        """`text` of a manifest with names, wildcard addresses, paths and uid as they are on this machine."""
        for name in sorted(self.addresses, key=len, reverse=True):
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", self.addresses[name], text)
        text = text.replace("0.0.0.0", pod.facts.ip)
        text = re.sub(rf"^(--owner=){CONTAINER_UID}$", rf"\g<1>{os.getuid()}", text)
        text = re.sub(rf"^(--group=){CONTAINER_UID}$", rf"\g<1>{os.getgid()}", text)
        return _PATH.sub(lambda match: pod.local_path(match[1]), text)

    def wait_probe(self, pod: Pod, kind: str, timeout_s: float = 60.0) -> None:
        """Until a probe of the manifest succeeds. AssertionError with the log after `timeout_s`, or when the process ends."""
        assert pod.process is not None, "not started"
        process = pod.process
        last = ""

        def succeeds() -> bool:
            nonlocal last
            assert process.poll() is None, f"{pod.facts.name} ended with {process.returncode}:\n{pod.log()}"
            last = probe(pod, kind)
            return not last

        try:
            wait_until(succeeds, f"{kind} of {pod.facts.name}", timeout_s, poll_s=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{last}\n{pod.log()}") from None

    def terminate(self, pod: Pod) -> int:
        """As the kubelet does: SIGTERM, and terminationGracePeriodSeconds to end in. The exit code."""
        assert pod.process is not None, "not started"
        pod.process.terminate()
        grace_s = pod.spec["terminationGracePeriodSeconds"]
        try:
            return pod.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{pod.facts.name} did not end within {grace_s} s of SIGTERM:\n{pod.log()}"
            ) from None

    def kill(self, pod: Pod) -> None:
        assert pod.process is not None, "not started"
        pod.process.kill()
        pod.process.wait(KILL_TIMEOUT_S)

    def close(self) -> None:
        for pod in reversed(self._pods):
            if pod.process is not None and pod.process.poll() is None:
                self.kill(pod)
        for memory in self._memory:
            shutil.rmtree(memory)
        self._memory.clear()

    def _with_own_view(self, pod: Pod, container: Object, words: list[str]) -> list[str]:
        """Without the directories of other nodes and pods, and read-only where the manifest says so."""
        if not can_mount():
            return words
        read_only = container.get("securityContext", {}).get("readOnlyRootFilesystem", False)
        mounts = [pod.local_path(mount["mountPath"]) for mount in container.get("volumeMounts", ())]
        own = {pod.facts.name, pod.facts.node}
        others = [str(path) for path in self._directory.iterdir() if path.is_dir() and path.name not in own]
        view = ["ro" if read_only else "rw", *mounts, "--", *others, "--"]
        return ["unshare", "--mount", "sh", "-c", _OWN_VIEW, "sh", *view, *words]

    def _roots(self, workload: Object, facts: PodFacts) -> dict[str, Path]:
        """Makes what stands for the pod's volumes: directories of its node, of its own, or files of a Secret."""
        spec = workload["spec"]["template"]["spec"]
        volumes: dict[str, Any] = {volume["name"]: volume for volume in spec.get("volumes", ())}
        roots = {}
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            for mount in container.get("volumeMounts", ()):
                volume = volumes.get(mount["name"], {})
                if "hostPath" in volume:
                    assert volume["hostPath"]["path"] == mount["mountPath"], (
                        "a node's paths are what peers are told"
                    )
                    root = self._directory / facts.node
                else:
                    root = self._directory / facts.name
                local = Path(f"{root}{mount['mountPath']}")
                if volume.get("emptyDir", {}).get("medium") == "Memory":
                    self._in_memory(local)
                else:
                    local.mkdir(parents=True, exist_ok=True)
                roots[mount["mountPath"]] = root
                if "secret" in volume:
                    self._write_secret(volume["secret"], local)
        return roots

    def _in_memory(self, local: Path) -> None:
        """What stands for a volume in memory: a directory there, by a link."""
        if not local.is_symlink():
            local.parent.mkdir(parents=True, exist_ok=True)
            memory = Path(tempfile.mkdtemp(prefix="kv-", dir="/dev/shm"))
            self._memory.append(memory)
            local.symlink_to(memory)

    def _write_secret(self, source: Object, directory: Path) -> None:
        name = source["secretName"]
        for item in source["items"]:
            reference = {"name": "X", "valueFrom": {"secretKeyRef": {"name": name, "key": item["key"]}}}
            container = {"env": [reference], "command": []}
            value = ContainerInput(container, self.objects, PodFacts("", "", "")).environment["X"]
            (directory / item["path"]).write_text(value)


def probe(pod: Pod, kind: str) -> str:
    """Asks a probe of the manifest once, as the kubelet does. Empty on success, otherwise why not."""
    declared: Mapping[str, Any] = pod.container[kind]
    port = http_port(pod.container, pod.container[kind])
    connection = http.client.HTTPConnection(pod.facts.ip, port, timeout=declared["timeoutSeconds"])
    try:
        connection.request("GET", declared["httpGet"]["path"])
        response = connection.getresponse()
        body = response.read(1000)
    except (OSError, http.client.HTTPException) as error:
        return str(error)
    finally:
        connection.close()
    return "" if 200 <= response.status < 400 else f"HTTP {response.status}: {body!r}"


def free_network() -> str:
    """Three numbers of a block in 127.0.0.0/8, picked by process and time so that runs beside each other do not meet."""
    mixed = os.getpid() * 7919 + int(time.time())
    return f"127.{64 + mixed % 128}.{1 + mixed // 128 % 250}"


def _program(words: list[str]) -> list[str]:
    """Programs of this environment (`kvstore`, `etcd`, `python3`) by their path, so that PATH decides nothing."""
    beside = Path(sys.executable).parent / words[0]
    return [str(beside), *words[1:]] if beside.exists() else words


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
