"""The SGLang that deploy/ and the documents name is one that the adapter is run with."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tools.sglang_versions import is_unpacked, newest, versions

from .manifests import REPOSITORY

IMAGE_TAG = re.compile(r"(?:lmsysorg/sglang|sglang-kvstore):v([0-9.]*[0-9])")
REQUIREMENTS = REPOSITORY / "tests" / "sglang" / "requirements.txt"
TABLE = re.compile(r"<!-- tools/sglang_versions.py table -->\n\n(.*?)\n\n<!-- end -->", re.DOTALL)


@pytest.mark.parametrize(
    "path", ["deploy/docker/sglang.Dockerfile", "deploy/k8s/examples/sglang.yaml", "docs/kubernetes.md"]
)
def test_images_are_of_the_newest_version_that_the_tests_run(path: str) -> None:
    named = IMAGE_TAG.findall((REPOSITORY / path).read_text())
    assert named and set(named) == {newest().number}


def test_the_newest_version_is_the_one_that_the_tests_install() -> None:
    assert f"sglang=={newest().number}" in REQUIREMENTS.read_text().splitlines()
    assert [version.number for version in versions() if not version.sha256] == [newest().number]


def test_versions_are_listed_from_old_to_new_and_pinned_by_hashes() -> None:
    listed = [tuple(map(int, version.number.split("."))) for version in versions()]
    assert listed == sorted(set(listed)) and len(listed) >= 6
    for version in versions()[:-1]:
        assert version.sha256 and all(re.fullmatch("[0-9a-f]{64}", digest) for digest in version.sha256)


def test_the_table_of_versions_in_the_documents_is_the_one_of_the_list() -> None:
    found = TABLE.search((REPOSITORY / "docs" / "sglang-versions.md").read_text())
    command = [sys.executable, str(REPOSITORY / "tools" / "sglang_versions.py"), "table"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert found is not None and found[1] == printed.strip()


def test_the_oldest_version_of_the_list_is_the_one_that_a_missing_sglang_is_told() -> None:
    oldest = versions()[0].number
    assert f"needs SGLang {oldest} or newer" in (REPOSITORY / "hicache_adapter" / "__init__.py").read_text()
    readme = (REPOSITORY / "README.md").read_text().replace("\n", " ")
    assert f"Tested with SGLang {oldest} to {newest().number}" in readme


def test_of_an_older_versions_wheel_only_sources_are_unpacked() -> None:
    assert is_unpacked("sglang/srt/mem_cache/hicache_storage.py")
    assert is_unpacked("sglang/srt/mem_cache/cpp_utils/hash_binding.cpp")
    assert not is_unpacked("sglang/srt/rust_extensions/_grpc.cpython-311-x86_64-linux-gnu.so")
    assert not is_unpacked("sglang/multimodal_gen/runtime/server_args.py")
