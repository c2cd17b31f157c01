"""Renders the part of kustomize that deploy/k8s uses, so that tests need no binary. `kubectl apply -k` is the real thing.

Known: resources, components, namespace, labels, images, patches (strategic merge, JSON 6902; by path or inline; by name
or by target). Whatever else a kustomization says is refused and not passed over, and so is a merge of lists whose rule
is not written down here.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

CLUSTER_KINDS = frozenset({"Namespace", "PriorityClass"})
_KNOWN_FIELDS = frozenset(
    {"apiVersion", "kind", "resources", "components", "namespace", "labels", "images", "patches"}
)
# Lists that a strategic merge merges by a key of their items (`patchMergeKey` in Kubernetes' API types).
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
}
# Lists that it replaces as a whole.
_ATOMIC_LISTS = frozenset({"args", "command", "drop", "add", "volumeClaimTemplates", "accessModes"})


class KustomizeError(ValueError):
    """The kustomization can't be rendered, or uses what this renderer does not know."""


def render(directory: Path) -> list[Object]:
    """The objects of the kustomization in `directory`, in order."""
    return _apply(directory, _read_kustomization(directory), [])


def load_objects(path: Path) -> list[Object]:
    """The objects of one YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def object_name(item: Object) -> str:
    """`Kind/name`, for messages and look-ups."""
    return f"{item['kind']}/{item['metadata']['name']}"


def _read_kustomization(directory: Path) -> Object:
    path = directory / "kustomization.yaml"
    kustomization: Object = yaml.safe_load(path.read_text())
    unknown = set(kustomization) - _KNOWN_FIELDS
    if unknown:
        raise KustomizeError(f"{path}: this renderer does not know {', '.join(sorted(unknown))}")
    return kustomization


def _apply(directory: Path, kustomization: Object, objects: list[Object]) -> list[Object]:
    """A kustomization applied to `objects`: none for an overlay, the overlay's for a component."""
    objects = list(objects)
    for entry in kustomization.get("resources", ()):
        path = directory / entry
        objects += render(path) if path.is_dir() else load_objects(path)
    _refuse_duplicates(directory, objects)
    # A component works on what the resources gave; the including kustomization's own patches come after it.
    for entry in kustomization.get("components", ()):
        component = directory / entry
        objects = _apply(component, _read_kustomization(component), objects)
    for patch in kustomization.get("patches", ()):
        objects = _patch(directory, patch, objects)
    for entry in kustomization.get("labels", ()):
        for item in objects:
            _label(item, entry)
    for entry in kustomization.get("images", ()):
        for item in objects:
            _set_image(item, entry)
    if "namespace" in kustomization:
        for item in objects:
            if item["kind"] == "Namespace":
                item["metadata"]["name"] = kustomization["namespace"]
            elif item["kind"] not in CLUSTER_KINDS:
                item["metadata"]["namespace"] = kustomization["namespace"]
    return objects


def _refuse_duplicates(directory: Path, objects: list[Object]) -> None:
    seen: set[str] = set()
    for item in objects:
        if object_name(item) in seen:
            raise KustomizeError(f"{directory}: {object_name(item)} is there twice")
        seen.add(object_name(item))


def _patch(directory: Path, entry: Object, objects: list[Object]) -> list[Object]:
    if set(entry) - {"path", "patch", "target"}:
        raise KustomizeError(f"{directory}: a patch with {sorted(entry)}")
    text = (directory / entry["path"]).read_text() if "path" in entry else entry["patch"]
    documents = [document for document in yaml.safe_load_all(text) if document]
    if "target" not in entry:
        for document in documents:
            objects = _merge_by_name(directory, document, objects)
        return objects
    targets = [item for item in objects if _is_target(item, entry["target"])]
    for item in targets:
        for document in documents:
            if isinstance(document, list):
                for operation in document:
                    _json_patch(item, operation)
            else:
                merged = strategic_merge(item, document)
                item.clear()
                item.update(merged)
    return objects


def _merge_by_name(directory: Path, document: Object, objects: list[Object]) -> list[Object]:
    wanted = (document["apiVersion"], document["kind"], document["metadata"]["name"])
    for position, item in enumerate(objects):
        if (item["apiVersion"], item["kind"], item["metadata"]["name"]) == wanted:
            if document.get("$patch") == "delete":
                return objects[:position] + objects[position + 1 :]
            return [*objects[:position], strategic_merge(item, document), *objects[position + 1 :]]
    raise KustomizeError(f"{directory}: there is no {object_name(document)} to patch")


def _is_target(item: Object, target: Object) -> bool:
    if set(target) - {"kind", "name", "labelSelector"}:
        raise KustomizeError(f"a patch target with {sorted(target)}")
    labels = item["metadata"].get("labels", {})
    wanted = dict(pair.split("=", 1) for pair in target.get("labelSelector", "").split(",") if pair)
    return (
        re.fullmatch(target.get("kind", ".*"), item["kind"]) is not None
        and re.fullmatch(target.get("name", ".*"), item["metadata"]["name"]) is not None
        and all(labels.get(key) == value for key, value in wanted.items())
    )


def strategic_merge(base: Any, patch: Any, field: str = "") -> Any:
    """`patch` over `base`: mappings merge, null deletes, lists merge by their key or are replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        merged = copy.deepcopy(base)
        for key, value in patch.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = strategic_merge(merged[key], value, key) if key in merged else _fresh(value)
        return merged
    if isinstance(base, list) and isinstance(patch, list):
        return _merge_lists(base, patch, field)
    return _fresh(patch)


def _merge_lists(base: list[Any], patch: list[Any], field: str) -> list[Any]:
    if field in _ATOMIC_LISTS:
        return _fresh(patch)
    if field not in _MERGE_KEYS:
        raise KustomizeError(f"how lists of {field!r} merge is not written down in this renderer")
    key = _MERGE_KEYS[field]
    merged = {item[key]: copy.deepcopy(item) for item in base}
    for item in patch:
        merged[item[key]] = strategic_merge(merged[item[key]], item) if item[key] in merged else _fresh(item)
    return list(merged.values())


def _fresh(value: Any) -> Any:
    """A copy without the nulls, which delete and are no values."""
    if isinstance(value, dict):
        return {key: _fresh(item) for key, item in value.items() if item is not None}
    return [_fresh(item) for item in value] if isinstance(value, list) else value


def _json_patch(item: Object, operation: Object) -> None:
    """One JSON 6902 operation on mappings."""
    *parents, last = [
        part.replace("~1", "/").replace("~0", "~") for part in operation["path"].strip("/").split("/")
    ]
    place: Any = item
    for part in parents:
        place = place[part]
    if not isinstance(place, dict) or operation["op"] not in ("add", "replace", "remove"):
        raise KustomizeError(f"this renderer does not know the JSON patch {operation}")
    if operation["op"] != "add" and last not in place:
        raise KustomizeError(f"{object_name(item)} has no {operation['path']}")
    if operation["op"] == "remove":
        del place[last]
    else:
        place[last] = copy.deepcopy(operation["value"])


def _label(item: Object, entry: Object) -> None:
    if set(entry) - {"pairs", "includeTemplates"}:
        raise KustomizeError(f"labels with {sorted(entry)}")
    item["metadata"].setdefault("labels", {}).update(entry["pairs"])
    template = item.get("spec", {}).get("template")
    if entry.get("includeTemplates") and template:
        template["metadata"].setdefault("labels", {}).update(entry["pairs"])


def _set_image(item: Object, entry: Object) -> None:
    if set(entry) - {"name", "newName", "newTag"}:
        raise KustomizeError(f"images with {sorted(entry)}")
    spec = item.get("spec", {}).get("template", {}).get("spec", {})
    for container in [*spec.get("initContainers", ()), *spec.get("containers", ())]:
        name, _, tag = container["image"].rpartition(":")
        if name == entry["name"]:
            container["image"] = f"{entry.get('newName', name)}:{entry.get('newTag', tag)}"
