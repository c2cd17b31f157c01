"""The renderer that the other tests stand on, and what renders."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest

from .kustomize import KustomizeError, Object, object_name, render, strategic_merge
from .manifests import MANIFESTS, TEST_OVERLAYS, base, containers, find, pod_spec, sglang_example, single_node

# The oldest release whose kubectl has kustomize 5 (several patches in a file), and the newest that there are schemas of.
VERSIONS = ("1.27", "1.37")
COMPONENTS = ("host-network", "rdma", "priority-class")


@pytest.fixture
def overlay(tmp_path: Path):
    """Renders a kustomization given as text, beside links to the real base and components."""
    (tmp_path / "k8s").symlink_to(MANIFESTS)

    def render_text(text: str) -> list[Object]:
        (tmp_path / "kustomization.yaml").write_text(text)
        return render(tmp_path)

    return render_text


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "rendered", [base, single_node, sglang_example], ids=lambda function: function.__name__
)
def test_every_object_fits_the_schema_of_kubernetes(rendered, version) -> None:
    for item in rendered():
        kubernetes_validate.validate(item, version, strict=True)


def test_the_schemas_refuse_an_unknown_field() -> None:
    item = find(base(), "DaemonSet/kvstore-segment")
    pod_spec(item)["hostNetwrok"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(item, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("directory", ["base", "overlays/single-node"])
@pytest.mark.parametrize("component", COMPONENTS)
def test_each_component_fits_onto_each_store(overlay, directory: str, component: str) -> None:
    objects = overlay(f"resources: [k8s/{directory}]\ncomponents: [k8s/components/{component}]\n")
    for item in objects:
        kubernetes_validate.validate(item, VERSIONS[-1], strict=True)
    assert objects != render(MANIFESTS / directory)


def test_the_base_names_no_namespace_and_an_overlay_sets_it_on_everything(overlay) -> None:
    assert not [item for item in base() if "namespace" in item["metadata"]]
    objects = overlay(
        "namespace: pages\nresources: [k8s/base, k8s/components/priority-class/priority-class.yaml]\n"
    )
    assert {item["metadata"].get("namespace", "") for item in objects if item["kind"] != "PriorityClass"} == {
        "pages"
    }
    assert "namespace" not in find(objects, "PriorityClass/kvstore")["metadata"]


def test_an_overlay_replaces_the_image_everywhere(overlay) -> None:
    objects = overlay(
        "resources: [k8s/base]\nimages: [{name: kvstore, newName: registry.example/kvstore, newTag: v9}]\n"
    )
    images = {
        container["image"]
        for item in objects
        if item["kind"] in ("StatefulSet", "DaemonSet")
        for container in containers(item)
        if container["name"] != "etcd"
    }
    assert images == {"registry.example/kvstore:v9"}


def test_the_single_node_store_has_no_etcd_left() -> None:
    objects = single_node()
    assert not [object_name(item) for item in objects if "etcd" in object_name(item)]
    assert find(objects, "StatefulSet/kvstore-master")["spec"]["replicas"] == 1
    assert "nodeSelector" not in pod_spec(find(objects, "DaemonSet/kvstore-segment"))


def test_test_overlays_change_the_size_of_the_pool_and_nothing_else() -> None:
    for name, whole in (("small", base()), ("small-single-node", single_node())):
        small = render(TEST_OVERLAYS / name)
        find(small, "ConfigMap/kvstore-segment-settings")["data"]["KVSTORE_SEGMENT_CAPACITY"] = find(
            whole, "ConfigMap/kvstore-segment-settings"
        )["data"]["KVSTORE_SEGMENT_CAPACITY"]
        assert small == whole


def test_a_strategic_merge_merges_by_name_replaces_command_lines_and_deletes_by_null() -> None:
    merged = strategic_merge(
        {"containers": [{"name": "a", "args": ["1", "2"], "x": 1}, {"name": "b"}], "gone": 1},
        {
            "containers": [{"name": "a", "args": ["3"], "env": [{"name": "E", "value": "v"}]}, {"name": "c"}],
            "gone": None,
        },
    )
    assert merged == {
        "containers": [
            {"name": "a", "args": ["3"], "x": 1, "env": [{"name": "E", "value": "v"}]},
            {"name": "b"},
            {"name": "c"},
        ]
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("resources: [k8s/base]\nnamePrefix: my-\n", "namePrefix"),
        ("resources: [k8s/base, k8s/base/master.yaml]\n", "twice"),
        (
            "resources: [k8s/base]\n"
            "patches: [{patch: '{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: other}}'}]\n",
            "no StatefulSet/other to patch",
        ),
    ],
)
def test_what_the_renderer_does_not_know_is_refused(overlay, text: str, complaint: str) -> None:
    with pytest.raises(KustomizeError, match=complaint):
        overlay(text)


def test_a_merge_of_lists_without_a_rule_is_refused() -> None:
    with pytest.raises(KustomizeError, match="tolerations"):
        strategic_merge({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]})
