"""Names and numbers that have to agree across the manifests, and with the programs they start."""

from __future__ import annotations

import itertools
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.main import get_command

from kvstore import __version__
from kvstore.cli.main import app
from kvstore.common.config.load import load
from kvstore.common.config.master import MasterSettings
from kvstore.common.config.segment import SegmentSettings
from kvstore.common.sizes import parse_size

from .kustomize import Object, object_name
from .manifests import (
    PROBES,
    TOKEN_SECRET,
    ContainerInput,
    PodFacts,
    base,
    containers,
    find,
    http_port,
    parse_quantity,
    pod_spec,
    selects,
    single_node,
    token_secret,
    workloads,
)

STORES = {"base": base(), "single-node": single_node()}
FACTS = PodFacts("kvstore-master-0", "10.0.0.7", "node")
# The pool, the interpreter, the index, socket buffers.
MEMORY_FACTOR_MIN = 1.1
VOLUME_FACTOR_MIN = 1.05
SETTINGS: dict[str, type[MasterSettings] | type[SegmentSettings]] = {
    "master": MasterSettings,
    "segment": SegmentSettings,
}

each_store = pytest.mark.parametrize("objects", STORES.values(), ids=STORES.keys())


def options_of(command: list[str]) -> dict[str, object]:
    """What the real CLI makes of `kvstore ...`; its usage error otherwise."""
    assert command[0] == "kvstore"
    group = get_command(app)
    subcommand = group.commands[command[1]]  # type: ignore[attr-defined]
    context = subcommand.make_context(command[1], command[2:], resilient_parsing=False)
    return {name: value for name, value in context.params.items() if value is not None}


def settings_of(objects: list[Object], workload: Object) -> MasterSettings | SegmentSettings:
    """The settings object that the workload's process would hold: options of its command line, then its environment."""
    (container,) = pod_spec(workload)["containers"]
    given = ContainerInput(container, [*objects, token_secret("secret")], FACTS)
    settings_class = SETTINGS[container["name"]]
    # A variable that nothing reads, or an option that doesn't exist, is refused.
    return load(settings_class, options_of(given.command), environ=given.environment).settings


def kvstore_workloads(objects: list[Object]) -> list[Object]:
    return [item for item in workloads(objects) if pod_spec(item)["containers"][0]["name"] in SETTINGS]


@each_store
def test_every_service_selects_a_workload_whose_container_has_its_ports(objects: list[Object]) -> None:
    services = [item for item in objects if item["kind"] == "Service"]
    assert services
    for service in services:
        selected = [item for item in workloads(objects) if selects(service["spec"]["selector"], item)]
        assert len(selected) == 1, object_name(service)
        ports = {
            port["name"]: port["containerPort"]
            for container in containers(selected[0])
            for port in container.get("ports", ())
        }
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"], object_name(service)


@each_store
def test_every_stateful_set_has_the_headless_service_that_names_its_pods_before_they_are_ready(
    objects,
) -> None:
    for workload in workloads(objects):
        if workload["kind"] == "StatefulSet":
            service = find(objects, f"Service/{workload['spec']['serviceName']}")
            assert service["spec"]["clusterIP"] == "None"
            assert service["spec"]["publishNotReadyAddresses"] is True
            assert selects(service["spec"]["selector"], workload)


@each_store
def test_workloads_select_their_own_pods_and_no_others(objects: list[Object]) -> None:
    for selecting, other in itertools.product(workloads(objects), repeat=2):
        assert selects(selecting["spec"]["selector"]["matchLabels"], other) == (selecting is other)


@each_store
def test_every_budget_and_spread_constraint_matches_pods(objects: list[Object]) -> None:
    budgets = [item for item in objects if item["kind"] == "PodDisruptionBudget"]
    for budget in budgets:
        (selected,) = [
            item for item in workloads(objects) if selects(budget["spec"]["selector"]["matchLabels"], item)
        ]
        assert selected["metadata"]["name"] == budget["metadata"]["name"]
    replicated = {item["metadata"]["name"] for item in workloads(objects) if item["kind"] == "StatefulSet"}
    assert {budget["metadata"]["name"] for budget in budgets} == replicated
    for workload in workloads(objects):
        for constraint in pod_spec(workload).get("topologySpreadConstraints", ()):
            assert selects(constraint["labelSelector"]["matchLabels"], workload)


@each_store
def test_every_server_has_all_three_probes_on_its_http_port(objects: list[Object]) -> None:
    for workload in workloads(objects):
        (container,) = pod_spec(workload)["containers"]
        status_port = {port["name"]: port["containerPort"] for port in container["ports"]}["http"]
        for kind in PROBES:
            assert http_port(container, container[kind]) == status_port
            assert container[kind]["periodSeconds"] * container[kind]["failureThreshold"] > 3
        if container["name"] in SETTINGS:
            assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
            assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


@each_store
def test_every_reference_to_a_config_map_secret_or_account_resolves(objects: list[Object]) -> None:
    there = {object_name(item) for item in objects} | {f"Secret/{TOKEN_SECRET}"}
    for workload in workloads(objects):
        assert f"ServiceAccount/{pod_spec(workload)['serviceAccountName']}" in there
        for container in containers(workload):
            for source in container.get("envFrom", ()):
                assert f"ConfigMap/{source['configMapRef']['name']}" in there
            ContainerInput(container, [*objects, token_secret("secret")], FACTS)
            mounts = {mount["name"] for mount in container.get("volumeMounts", ())}
            volumes = {volume["name"] for volume in pod_spec(workload).get("volumes", ())}
            claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", ())}
            assert mounts <= volumes | claims


@each_store
def test_the_real_settings_accept_every_variable_and_option(objects: list[Object]) -> None:
    for workload in kvstore_workloads(objects):
        settings = settings_of(objects, workload)
        assert settings.token.get_secret_value() == "secret"
        assert settings.host == "0.0.0.0"


@each_store
def test_container_ports_are_those_that_the_servers_listen_on(objects: list[Object]) -> None:
    for workload in kvstore_workloads(objects):
        (container,) = pod_spec(workload)["containers"]
        settings = settings_of(objects, workload)
        if isinstance(settings, MasterSettings):
            assert settings.advertise_host == "kvstore-master-0.kvstore-master-peers"
            listens = {
                "directory": settings.directory_port,
                "control": settings.control_port,
                "http": settings.http_port,
            }
        else:
            listens = {"data": settings.port, "http": settings.http_port}
            assert settings.http_host == "0.0.0.0", "the kubelet asks the pod's address"
            assert settings.advertise_host == FACTS.ip
        assert {port["name"]: port["containerPort"] for port in container["ports"]} == listens


@each_store
def test_segments_name_every_master_by_its_control_port(objects: list[Object]) -> None:
    master = find(objects, "StatefulSet/kvstore-master")
    settings = settings_of(objects, find(objects, "DaemonSet/kvstore-segment"))
    assert isinstance(settings, SegmentSettings)
    service = find(objects, f"Service/{master['spec']['serviceName']}")
    control = {port["name"]: port["port"] for port in service["spec"]["ports"]}["control"]
    assert settings.masters == tuple(
        f"kvstore-master-{number}.{service['metadata']['name']}:{control}"
        for number in range(master["spec"]["replicas"])
    )


def test_masters_name_every_etcd_member_and_know_its_quota() -> None:
    objects = STORES["base"]
    etcd = find(objects, "StatefulSet/kvstore-etcd")
    names = [f"kvstore-etcd-{number}" for number in range(etcd["spec"]["replicas"])]
    hosts = [f"{name}.{etcd['spec']['serviceName']}" for name in names]
    arguments = dict(word.split("=", 1) for word in etcd["spec"]["template"]["spec"]["containers"][0]["args"])
    assert arguments["--initial-cluster"] == ",".join(
        f"{name}=http://{host}:2380" for name, host in zip(names, hosts, strict=True)
    )
    settings = settings_of(objects, find(objects, "StatefulSet/kvstore-master"))
    assert isinstance(settings, MasterSettings)
    uri = urlsplit(settings.metadata)
    assert uri.scheme == "etcd"
    assert uri.netloc == ",".join(f"{host}:2379" for host in hosts)
    assert parse_qs(uri.query)["quota_bytes"] == [arguments["--quota-backend-bytes"]] == [str(8 << 30)]
    claim = etcd["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    assert parse_quantity(claim) >= 2 * (8 << 30)


def test_the_single_master_keeps_its_records_on_its_volume() -> None:
    objects = STORES["single-node"]
    master = find(objects, "StatefulSet/kvstore-master")
    settings = settings_of(objects, master)
    assert isinstance(settings, MasterSettings)
    uri = urlsplit(settings.metadata)
    (mount,) = pod_spec(master)["containers"][0]["volumeMounts"]
    assert uri.scheme == "rocksdb" and uri.path.startswith(f"{mount['mountPath']}/")
    assert [claim["metadata"]["name"] for claim in master["spec"]["volumeClaimTemplates"]] == [mount["name"]]


@each_store
def test_the_pool_fits_into_memory_that_is_reserved_for_it(objects: list[Object]) -> None:
    segment = find(objects, "DaemonSet/kvstore-segment")
    settings = settings_of(objects, segment)
    assert isinstance(settings, SegmentSettings)
    resources = pod_spec(segment)["containers"][0]["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert "cpu" not in resources["limits"]
    limit = parse_quantity(resources["limits"]["memory"])
    assert limit >= MEMORY_FACTOR_MIN * parse_size(settings.capacity)
    # Its file outlives the container: in a volume of the pod, in memory, with room for what keeps track of the pages, too.
    volumes = {volume["name"]: volume for volume in pod_spec(segment)["volumes"]}
    mounts = {m["mountPath"]: m["name"] for m in pod_spec(segment)["containers"][0]["volumeMounts"]}
    volume = volumes[mounts[str(Path(settings.pool_path).parent)]]["emptyDir"]
    assert volume["medium"] == "Memory"
    assert VOLUME_FACTOR_MIN * parse_size(settings.capacity) <= parse_quantity(volume["sizeLimit"]) <= limit


@each_store
def test_a_large_pool_has_time_to_be_touched_before_it_counts_as_dead(objects: list[Object]) -> None:
    (container,) = pod_spec(find(objects, "DaemonSet/kvstore-segment"))["containers"]
    startup = container["startupProbe"]
    allowed_s = startup["periodSeconds"] * startup["failureThreshold"]
    gib = parse_quantity(container["resources"]["limits"]["memory"]) >> 30
    assert allowed_s >= 2 * gib + 30


@each_store
def test_a_segment_has_time_to_be_drained_before_it_is_killed(objects: list[Object]) -> None:
    segment = find(objects, "DaemonSet/kvstore-segment")
    settings = settings_of(objects, segment)
    assert isinstance(settings, SegmentSettings)
    assert settings.on_term == "drain", "the pool ends with the pod"
    # A drain, the goodbye, and the pool's memory given back.
    assert pod_spec(segment)["terminationGracePeriodSeconds"] >= settings.drain_timeout_s + 20


@each_store
def test_images_carry_the_version_of_this_code_and_never_latest(objects: list[Object]) -> None:
    for workload in workloads(objects):
        for container in containers(workload):
            name, _, tag = container["image"].rpartition(":")
            assert name and tag and tag != "latest"
            if name == "kvstore":
                assert tag == __version__


def test_a_command_line_that_the_cli_does_not_know_would_be_noticed() -> None:
    with pytest.raises(Exception, match="no-such-option"):
        options_of(["kvstore", "master", "--no-such-option=1"])
