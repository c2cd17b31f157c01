"""Reads rendered manifests: workloads, their containers, and what a container is told once Kubernetes has filled it in."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .kustomize import Object, load_objects, object_name, render

REPOSITORY = Path(__file__).parents[2]
MANIFESTS = REPOSITORY / "deploy" / "k8s"
TEST_OVERLAYS = Path(__file__).parent / "overlays"
WORKLOAD_KINDS = ("StatefulSet", "DaemonSet", "Deployment")
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
TOKEN_SECRET = "kvstore-token"

_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


def base() -> list[Object]:
    """The whole store: three masters on three etcd members, and segments."""
    return render(MANIFESTS / "base")


def single_node() -> list[Object]:
    return render(MANIFESTS / "overlays" / "single-node")


def sglang_example() -> list[Object]:
    return load_objects(MANIFESTS / "examples" / "sglang.yaml")


def workloads(objects: list[Object]) -> list[Object]:
    return [item for item in objects if item["kind"] in WORKLOAD_KINDS]


def find(objects: list[Object], name: str) -> Object:
    """The object `Kind/name`; KeyError without one."""
    return {object_name(item): item for item in objects}[name]


def pod_spec(workload: Object) -> Object:
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def containers(workload: Object) -> Iterator[Object]:
    """Init containers too."""
    spec = pod_spec(workload)
    yield from spec.get("initContainers", ())
    yield from spec["containers"]


def selects(selector: dict[str, str], workload: Object) -> bool:
    labels = workload["spec"]["template"]["metadata"]["labels"]
    return all(labels.get(key) == value for key, value in selector.items())


def parse_quantity(text: str | int) -> int:
    """Bytes, or whole units, of a Kubernetes quantity with a binary suffix or none."""
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti)?", str(text))
    assert match is not None, f"{text!r} is not a quantity that these tests know"
    return int(match[1]) << {None: 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}[match[2]]


@dataclass(frozen=True)
class PodFacts:
    """What the downward API tells a container of its pod."""

    name: str
    ip: str
    node: str

    def field(self, path: str) -> str:
        return {"metadata.name": self.name, "status.podIP": self.ip, "spec.nodeName": self.node}[path]


class ContainerInput:
    """Environment and command line of one container, as the kubelet makes them from a manifest."""

    def __init__(self, container: Object, objects: list[Object], facts: PodFacts) -> None:
        self._objects = objects
        self._facts = facts
        self.environment: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            self.environment.update(self._data("ConfigMap", source["configMapRef"]["name"]))
        for entry in container.get("env", ()):
            self.environment[entry["name"]] = self._value(entry)
        words = [*container["command"], *container.get("args", ())]
        self.command = [self._expand(word) for word in words]

    def _value(self, entry: Object) -> str:
        if "value" in entry:
            return self._expand(entry["value"])
        ((kind, source),) = entry["valueFrom"].items()
        if kind == "fieldRef":
            return self._facts.field(source["fieldPath"])
        if kind == "secretKeyRef":
            return self._data("Secret", source["name"])[source["key"]]
        return self._data("ConfigMap", source["name"])[source["key"]]

    def _data(self, kind: str, name: str) -> dict[str, str]:
        data: dict[str, str] = find(self._objects, f"{kind}/{name}")["data"]
        if kind == "Secret":
            return {key: base64.b64decode(value).decode() for key, value in data.items()}
        return data

    def _expand(self, text: str) -> str:
        """`$(NAME)` of variables that are defined already; others stay as they are, as in Kubernetes."""
        lookup: Callable[[re.Match[str]], str] = lambda match: self.environment.get(match[1], match[0])  # noqa: E731
        return _VARIABLE.sub(lookup, text)


def token_secret(token: str) -> Object:
    """What `kubectl create secret generic kvstore-token --from-literal=token=...` makes."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": TOKEN_SECRET},
        "data": {"token": base64.b64encode(token.encode()).decode()},
    }


def http_port(container: Object, probe: Object) -> int:
    """The number of a probe's port."""
    port: Any = probe["httpGet"]["port"]
    if isinstance(port, int):
        return port
    return int({entry["name"]: entry["containerPort"] for entry in container["ports"]}[port])
