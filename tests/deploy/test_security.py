"""What a pod may do, and who may talk to whom."""

from __future__ import annotations

import pytest

from .kustomize import Object, object_name
from .manifests import base, containers, find, pod_spec, selects, sglang_example, single_node, workloads

STORES = {"base": base(), "single-node": single_node()}
ENGINE = {"kvstore/client": "true"}
TOOL = {"kvstore/tool": "true"}
DNS_PORT = 53

each_store = pytest.mark.parametrize("objects", STORES.values(), ids=STORES.keys())


@each_store
def test_servers_run_unprivileged_on_a_read_only_file_system(objects: list[Object]) -> None:
    for workload in workloads(objects):
        assert pod_spec(workload)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod_spec(workload))
        for container in pod_spec(workload)["containers"]:
            context = {**pod_spec(workload)["securityContext"], **container["securityContext"]}
            assert context["runAsNonRoot"] is True
            assert context["runAsUser"] == context["runAsGroup"] == 10001
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in context


@each_store
def test_the_only_root_process_owns_two_host_directories_and_ends(objects: list[Object]) -> None:
    roots = [
        (workload["metadata"]["name"], container)
        for workload in workloads(objects)
        for container in pod_spec(workload).get("initContainers", ())
    ]
    ((name, container),) = roots
    assert name == "kvstore-segment"
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "FOWNER"]}
    assert context["readOnlyRootFilesystem"] is True and context["allowPrivilegeEscalation"] is False
    assert container["command"] == ["install"]
    paths = [word for word in container["args"] if word.startswith("/")]
    assert paths == [mount["mountPath"] for mount in container["volumeMounts"]]


@each_store
def test_nothing_can_call_the_kubernetes_api(objects: list[Object]) -> None:
    assert not [item for item in objects if "Role" in item["kind"]]
    accounts = [item for item in objects if item["kind"] == "ServiceAccount"]
    assert len(accounts) == len(workloads(objects))
    for account in accounts:
        assert account["automountServiceAccountToken"] is False
    for workload in workloads(objects):
        assert pod_spec(workload)["automountServiceAccountToken"] is False
        assert pod_spec(workload)["serviceAccountName"] == workload["metadata"]["name"]


@pytest.mark.parametrize("objects", [*STORES.values(), sglang_example()], ids=[*STORES, "sglang"])
def test_variables_that_kubernetes_injects_for_services_cannot_become_settings(objects: list[Object]) -> None:
    for workload in workloads(objects):
        assert pod_spec(workload)["enableServiceLinks"] is False


@each_store
def test_no_secret_lies_in_the_manifests(objects: list[Object]) -> None:
    assert not [item for item in objects if item["kind"] == "Secret"]
    for item in objects:
        if item["kind"] == "ConfigMap":
            assert not [name for name in item["data"] if "TOKEN" in name]


@each_store
def test_every_pod_asks_for_what_it_uses_and_is_bounded_in_memory(objects: list[Object]) -> None:
    for workload in workloads(objects):
        for container in containers(workload):
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]


# ---- network policies -------------------------------------------------------------------------------------------------


def policy_of(objects: list[Object], workload: Object) -> Object:
    (policy,) = [
        item
        for item in objects
        if item["kind"] == "NetworkPolicy" and selects(item["spec"]["podSelector"]["matchLabels"], workload)
    ]
    return policy


def admits(rule_peers: list[Object] | None, labels: dict[str, str], namespace: dict[str, str] | None) -> bool:
    """Whether a rule's `from`/`to` holds a pod with `labels`; `namespace`: its namespace's labels, None for the store's own."""
    if rule_peers is None:
        return True
    for peer in rule_peers:
        wanted = peer.get("podSelector", {}).get("matchLabels", {})
        if not all(labels.get(key) == value for key, value in wanted.items()):
            continue
        if "namespaceSelector" not in peer:
            if namespace is None:
                return True
            continue
        wanted = peer["namespaceSelector"]["matchLabels"]
        if all((namespace or {}).get(key) == value for key, value in wanted.items()):
            return True
    return False


def open_ports(
    objects: list[Object], target: str, labels: dict[str, str], namespace: dict[str, str] | None = None
) -> set[str]:
    """Names of the container ports of `target` that a pod with these labels reaches."""
    workload = find(objects, target)
    ports = {p["containerPort"]: p["name"] for c in pod_spec(workload)["containers"] for p in c["ports"]}
    numbers: set[int] = set()
    for rule in policy_of(objects, workload)["spec"]["ingress"]:
        if admits(rule.get("from"), labels, namespace):
            numbers |= {port["port"] for port in rule["ports"]}
    return {ports[number] for number in numbers}


def labels_of(objects: list[Object], name: str) -> dict[str, str]:
    labels: dict[str, str] = find(objects, name)["spec"]["template"]["metadata"]["labels"]
    return labels


@each_store
def test_every_pod_is_under_exactly_one_policy_for_both_directions(objects: list[Object]) -> None:
    for workload in workloads(objects):
        assert policy_of(objects, workload)["spec"]["policyTypes"] == ["Ingress", "Egress"]


@each_store
def test_every_port_of_a_policy_is_a_port_of_its_pods(objects: list[Object]) -> None:
    for workload in workloads(objects):
        own = {p["containerPort"] for c in pod_spec(workload)["containers"] for p in c["ports"]}
        policy = policy_of(objects, workload)
        named = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert named == own, object_name(policy)


@each_store
def test_an_unlabelled_pod_reaches_nothing(objects: list[Object]) -> None:
    for workload in workloads(objects):
        assert open_ports(objects, object_name(workload), {"app": "stranger"}) == set()


@each_store
def test_engines_reach_directory_and_data_and_nothing_else(objects: list[Object]) -> None:
    for namespace in (None, {"kvstore/clients": "true"}):
        assert open_ports(objects, "StatefulSet/kvstore-master", ENGINE, namespace) == {"directory"}
        assert open_ports(objects, "DaemonSet/kvstore-segment", ENGINE, namespace) == {"data"}
    assert open_ports(objects, "StatefulSet/kvstore-master", ENGINE, {"team": "other"}) == set()
    assert open_ports(objects, "DaemonSet/kvstore-segment", ENGINE, {"team": "other"}) == set()


def test_the_example_of_an_engine_carries_the_label() -> None:
    labels = labels_of(sglang_example(), "Deployment/sglang")
    assert open_ports(STORES["base"], "StatefulSet/kvstore-master", labels) == {"directory"}
    assert open_ports(STORES["base"], "DaemonSet/kvstore-segment", labels) == {"data"}


@each_store
def test_only_servers_and_tools_reach_the_control_port(objects: list[Object]) -> None:
    segment, master = (
        labels_of(objects, name) for name in ("DaemonSet/kvstore-segment", "StatefulSet/kvstore-master")
    )
    assert open_ports(objects, "StatefulSet/kvstore-master", segment) == {"directory", "control"}
    # Masters for `kvstore admin status` in their containers, which looks with a client's eyes.
    assert open_ports(objects, "StatefulSet/kvstore-master", master) == {"directory", "control"}
    assert open_ports(objects, "DaemonSet/kvstore-segment", master) == {"data"}
    assert open_ports(objects, "StatefulSet/kvstore-master", TOOL) == {"directory", "control"}
    assert open_ports(objects, "StatefulSet/kvstore-master", TOOL, {"kvstore/clients": "true"}) == set()


def test_only_masters_and_members_reach_etcd() -> None:
    objects = STORES["base"]
    assert open_ports(
        objects, "StatefulSet/kvstore-etcd", labels_of(objects, "StatefulSet/kvstore-master")
    ) == {"etcd-client"}
    assert open_ports(
        objects, "StatefulSet/kvstore-etcd", labels_of(objects, "StatefulSet/kvstore-etcd")
    ) == {
        "etcd-client",
        "etcd-peer",
    }
    for labels in (labels_of(objects, "DaemonSet/kvstore-segment"), ENGINE, TOOL):
        assert open_ports(objects, "StatefulSet/kvstore-etcd", labels) == set()


@each_store
def test_monitoring_reaches_the_status_ports_only(objects: list[Object]) -> None:
    for workload in workloads(objects):
        seen = open_ports(
            objects, object_name(workload), {"app": "prometheus"}, {"kvstore/monitoring": "true"}
        )
        assert seen == {"http"}


@each_store
def test_servers_may_call_whom_they_need_and_whoever_they_call_lets_them_in(objects: list[Object]) -> None:
    calls = {
        ("DaemonSet/kvstore-segment", "StatefulSet/kvstore-master"): {"directory", "control"},
        ("StatefulSet/kvstore-master", "StatefulSet/kvstore-etcd"): {"etcd-client"},
        ("StatefulSet/kvstore-master", "StatefulSet/kvstore-master"): {"directory", "control"},
        ("StatefulSet/kvstore-master", "DaemonSet/kvstore-segment"): {"data"},
        ("StatefulSet/kvstore-etcd", "StatefulSet/kvstore-etcd"): {"etcd-client", "etcd-peer"},
    }
    names = {object_name(item) for item in workloads(objects)}
    for caller in names:
        egress = policy_of(objects, find(objects, caller))["spec"]["egress"]
        assert [port["port"] for port in egress[-1]["ports"]] == [DNS_PORT, DNS_PORT] and "to" not in egress[
            -1
        ]
        for called in names:
            ports = {
                p["containerPort"]: p["name"]
                for c in pod_spec(find(objects, called))["containers"]
                for p in c["ports"]
            }
            allowed = {
                ports[port["port"]]
                for rule in egress[:-1]
                if admits(rule["to"], labels_of(objects, called), None)
                for port in rule["ports"]
            }
            assert allowed == calls.get((caller, called), set()), (caller, called)
            assert allowed <= open_ports(objects, called, labels_of(objects, caller))
