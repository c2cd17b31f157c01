"""The example of an SGLang server against what `kvstore up` prints and what the adapter reads."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
from pathlib import Path

from hicache_adapter import AdapterConfig
from kvstore.cli.sglang_flags import LAYOUT_FLAGS, sglang_flags

from .kustomize import Object
from .manifests import TOKEN_SECRET, base, find, pod_spec, sglang_example

EXTRA_CONFIG = "--hicache-storage-backend-extra-config"


def container() -> Object:
    (only,) = pod_spec(find(sglang_example(), "Deployment/sglang"))["containers"]
    return dict(only)


def extra_config() -> dict[str, object]:
    arguments = container()["args"]
    config: dict[str, object] = json.loads(arguments[arguments.index(EXTRA_CONFIG) + 1])
    return config


def test_the_flags_are_those_that_kvstore_up_prints() -> None:
    config = extra_config()
    printed = [*sglang_flags(str(config["masters"]), str(config["token_file"])), *LAYOUT_FLAGS]
    assert container()["args"][-len(printed) :] == printed


def test_the_extra_config_names_the_real_class() -> None:
    config = extra_config()
    spec = importlib.util.find_spec(str(config["module_path"]))
    assert spec is not None and spec.origin is not None
    backend = ast.parse((Path(spec.origin).parent / "backend.py").read_text())
    assert config["class_name"] in {node.name for node in ast.walk(backend) if isinstance(node, ast.ClassDef)}
    assert f'name != "{config["class_name"]}"' in Path(spec.origin).read_text(), (
        "the package hands the class out"
    )


def test_the_adapter_accepts_the_config_and_reads_the_mounted_token(tmp_path: Path) -> None:
    config = extra_config()
    (tmp_path / "token").write_text("secret\n")
    parsed = AdapterConfig.from_extra_config({**config, "token_file": str(tmp_path / "token")}, {})
    assert parsed.client_config("engine").token == "secret"
    (mount,) = [
        m for m in container()["volumeMounts"] if str(config["token_file"]).startswith(f"{m['mountPath']}/")
    ]
    (volume,) = [
        v
        for v in pod_spec(find(sglang_example(), "Deployment/sglang"))["volumes"]
        if v["name"] == mount["name"]
    ]
    assert volume["secret"]["secretName"] == TOKEN_SECRET
    (item,) = volume["secret"]["items"]
    assert f"{mount['mountPath']}/{item['path']}" == config["token_file"]


def test_the_masters_are_all_of_the_base_at_their_directory_port() -> None:
    objects = base()
    service = find(objects, "Service/kvstore-master-peers")
    port = {entry["name"]: entry["port"] for entry in service["spec"]["ports"]}["directory"]
    replicas = find(objects, "StatefulSet/kvstore-master")["spec"]["replicas"]
    assert extra_config()["masters"] == ",".join(
        f"kvstore-master-{number}.{service['metadata']['name']}:{port}" for number in range(replicas)
    )


def test_the_segments_socket_is_mounted_under_the_path_that_the_segment_tells() -> None:
    segment = pod_spec(find(base(), "DaemonSet/kvstore-segment"))
    engine = pod_spec(find(sglang_example(), "Deployment/sglang"))
    shared = []
    for spec in (segment, engine):
        paths = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
        mounts = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
        shared.append({(paths[name], mounts[name]) for name in paths})
    assert shared[0] & shared[1] == {("/run/kvstore", "/run/kvstore")}
    environment = {e["name"]: e.get("value") for e in segment["containers"][0]["env"]}
    assert environment["XDG_RUNTIME_DIR"] == "/run"


def test_engines_run_where_segments_are_and_tolerate_the_same_taints() -> None:
    segment = pod_spec(find(base(), "DaemonSet/kvstore-segment"))
    engine = pod_spec(find(sglang_example(), "Deployment/sglang"))
    assert engine["nodeSelector"] == segment["nodeSelector"]
    assert engine["tolerations"] == segment["tolerations"]


def test_every_argument_is_one_word_of_a_command_line() -> None:
    """No flag is left without its value, and none is given twice."""
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    for flag in (
        "--model-path",
        "--host",
        "--port",
        "--hicache-storage-backend",
        EXTRA_CONFIG,
        *LAYOUT_FLAGS[::2],
    ):
        parser.add_argument(flag, required=True)
    parser.add_argument("--enable-hierarchical-cache", action="store_true", required=True)
    arguments = container()["args"]
    parsed = parser.parse_args(arguments)
    assert parsed.hicache_storage_backend == "dynamic"
    flags = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    assert len(flags) == len(set(flags))
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert ports["http"] == int(parsed.port)
