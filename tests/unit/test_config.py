"""Settings: four places that give them in a fixed order, and one line for each thing that is wrong, which names its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import ValidationError

from kvstore.common.config import SECTIONS
from kvstore.common.config.admin import AdminSettings
from kvstore.common.config.environment import unknown_variables
from kvstore.common.config.load import ConfigurationError, Loaded, check_file, known_variables, load
from kvstore.common.config.master import METADATA_SCHEMES, MasterSettings
from kvstore.common.config.schema import Declaration, Settings, declarations
from kvstore.common.config.segment import SegmentSettings
from kvstore.common.config.up import UpSettings
from kvstore.master.metadata.registry import metadata_schemes
from kvstore.master.state.placement import POLICIES
from kvstore_client._native import SegmentStore

REPOSITORY = Path(__file__).resolve().parents[2]
EVERY_SETTING = [d for settings_class in SECTIONS for d in declarations(settings_class)]
# What a file can say of each setting that is neither a number nor a choice.
EXAMPLES = {
    "numa_nodes": "0,1",
    "token": "secret",
    "host": "0.0.0.0",
    "advertise_host": "kv.example",
    "http_host": "::",
    "metadata": "rocksdb:///var/lib/kvstore",
    "masters": "a:1,[::1]:2",
    "master": "a:1,b:2",
    "capacity": "8GiB",
    "size": "8GiB",
    "unix_path": "off",
    "rdma_library": "/usr/lib/libucp.so.0",
}


def given(
    settings_class: type[Settings],
    options: dict[str, str | None] | None = None,
    environ: dict[str, str] | None = None,
    file: Path | None = None,
) -> Loaded[Any]:
    return load(settings_class, options or {}, str(file or ""), environ or {})


def faults(*arguments: Any, **named: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as refused:
        given(*arguments, **named)
    return refused.value.faults


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A file that says the same as nobody else."""
    path = tmp_path / "kvstore.yaml"
    path.write_text("segment:\n  port: 1111\n  capacity: 1GiB\n  host: 10.0.0.1\n  log_level: error\n")
    return path


# ---- where values come from --------------------------------------------------------------------------------


def test_an_option_beats_the_environment_that_beats_the_file_that_beats_the_default(config: Path) -> None:
    environ = {"KVSTORE_SEGMENT_PORT": "2222", "KVSTORE_SEGMENT_CAPACITY": "2GiB"}
    loaded = given(SegmentSettings, {"port": "3333"}, environ, config)
    settings = loaded.settings
    assert (settings.port, settings.capacity, settings.host) == (3333, "2GiB", "10.0.0.1")
    assert settings.connections_max == 1024
    assert loaded.origins == {
        "port": "--port",
        "capacity": "environment KVSTORE_SEGMENT_CAPACITY",
        "host": f"{config}:4: segment.host",
        "log_level": f"{config}:5: segment.log_level",
    }


def test_the_environment_names_the_file(config: Path) -> None:
    assert given(SegmentSettings, environ={"KVSTORE_CONFIG": str(config)}).settings.port == 1111


@pytest.mark.parametrize("declared", EVERY_SETTING, ids=lambda d: f"{d.section}.{d.name}")
@pytest.mark.parametrize("empty", ["", "  "])
def test_empty_means_not_given_for_every_setting_in_every_place(
    declared: Declaration, empty: str, tmp_path: Path
) -> None:
    settings_class = next(c for c in SECTIONS if c.section == declared.section)
    by_default = given(settings_class).settings
    file = tmp_path / "kvstore.yaml"
    file.write_text(f"{declared.section}:\n  {declared.name}: '{empty}'\n")
    assert given(settings_class, file=file).settings == by_default
    file.write_text(f"{declared.section}:\n  {declared.name}:\n")
    assert given(settings_class, file=file).settings == by_default
    assert given(settings_class, {declared.name: empty}).settings == by_default
    for variable in declared.variables:
        assert given(settings_class, environ={variable: empty}).settings == by_default


@pytest.mark.parametrize("declared", EVERY_SETTING, ids=lambda d: f"{d.section}.{d.name}")
def test_every_setting_is_taken_from_each_place_alike(declared: Declaration, tmp_path: Path) -> None:
    settings_class = next(c for c in SECTIONS if c.section == declared.section)
    text = an_accepted_text(declared, tmp_path)
    file = tmp_path / "kvstore.yaml"
    file.write_text(f"{declared.section}:\n  {declared.name}: '{text}'\n")
    results = [
        given(settings_class, {declared.name: text}).settings,
        given(settings_class, environ={declared.variable: text}).settings,
        given(settings_class, file=file).settings,
    ]
    assert results[0] == results[1] == results[2]
    assert check_file(file) == ([], 1)


def an_accepted_text(declared: Declaration, directory: Path) -> str:
    annotation: Any = declared.field.annotation
    if get_origin(annotation) is Literal:
        return str(get_args(annotation)[-1])
    if declared.name == "token_file":
        (directory / "token").write_text("secret\n")
        return str(directory / "token")
    if declared.name == "data_dir":
        return str(directory)
    if annotation is bool:
        return "yes"
    return EXAMPLES.get(declared.name, declared.default)


def test_a_list_in_the_file_is_the_same_as_a_text_with_commas(tmp_path: Path) -> None:
    file = tmp_path / "kvstore.yaml"
    file.write_text('segment:\n  masters: ["a:1", "b:2"]\n')
    assert given(SegmentSettings, file=file).settings.masters == ("a:1", "b:2")


def test_masters_are_split_and_named_once() -> None:
    settings = given(AdminSettings, {"master": "a:1, b:2,,a:1,[::1]:3,c"}).settings
    assert settings.master == ("a:1", "b:2", "[::1]:3", "c:7441")
    assert given(SegmentSettings, {"host": "[::1]"}).settings.host == "::1"


# ---- the secret --------------------------------------------------------------------------------------------


def test_of_the_secret_and_its_file_the_stronger_place_counts(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text("from-our-file\n")
    theirs.write_text("from-theirs")
    environ: dict[str, str] = {}
    options: dict[str, str | None] = {}

    def secret() -> str:
        return str(given(AdminSettings, options, environ).settings.token.get_secret_value())

    assert secret() == ""
    environ["KVSTORE_MASTER_TOKEN"] = "the-masters"
    assert secret() == "the-masters"
    environ["KVSTORE_TOKEN_FILE"] = str(theirs)
    assert secret() == "from-theirs"
    environ["KVSTORE_ADMIN_TOKEN"] = "from-the-environment"
    assert secret() == "from-the-environment"
    options["token_file"] = str(ours)
    assert secret() == "from-our-file"
    options = {"token": "given"}
    assert secret() == "given"


def test_a_secret_that_cannot_be_used_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for options, text in (
        ({"token": "two words"}, "--token: a token consists of visible ASCII"),
        ({"token": "x" * 1025}, "--token: a token has at most 1024 bytes"),
        ({"token": "x", "token_file": "y"}, "--token and --token-file are both given: keep one"),
        ({"token_file": "/nonexistent/t"}, "--token-file: /nonexistent/t can't be read: No such file"),
        ({"token_file": str(tmp_path / "empty")}, "is empty: write the secret into it"),
    ):
        (fault,) = faults(MasterSettings, options)
        assert text in fault
        assert "two words" not in fault and "xxx" not in fault


# ---- what is wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"masters": ","}, "needs 1..64 addresses"),
        ({"masters": "::1:7441"}, r"in brackets, as \[::1\]:7441"),
        ({"masters": "http://a:7441/"}, "write 'a:7441'"),
        ({"masters": "0.0.0.0:7441"}, "listens on, not where it is reached"),
        ({"masters": "a:0"}, "a port is a number in 1..65535"),
        ({"masters": "a:70000"}, "a port is a number in 1..65535"),
        ({"host": "a:7450"}, "the port has an option of its own"),
        ({"advertise_host": "0.0.0.0"}, "listens on, not where it is reached"),
        ({"capacity": "many"}, "not a size"),
        ({"capacity": "1"}, "a pool has 1.0 MiB to "),
        ({"capacity": "99999999TiB"}, "a pool has 1.0 MiB to .*, not 99999999TiB"),
        ({"port": "70000"}, "less than or equal to 65535, not '70000'"),
        ({"port": "many"}, "valid integer.*, not 'many'"),
        ({"log_level": "loud"}, "'debug', 'info', 'warning' or 'error', not 'loud'"),
        ({"eviction_policy": "none"}, "or 'lru', not 'none'"),
        ({"lock_memory": "perhaps"}, "valid boolean.*, not 'perhaps'"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_its_place_and_what_is_right(
    values: dict[str, str | None], text: str
) -> None:
    (fault,) = faults(SegmentSettings, values)
    assert re.search(text, fault) and "\n" not in fault
    if len(values) > 1:
        return
    (name,) = values
    assert fault.startswith(f"--{name.replace('_', '-')}: ")
    environ = {f"KVSTORE_SEGMENT_{name.upper()}": str(values[name])}
    (fault,) = faults(SegmentSettings, environ=environ)
    assert fault.startswith(f"environment KVSTORE_SEGMENT_{name.upper()}: ")


def test_everything_that_is_wrong_with_a_file_is_said_at_once_each_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "kvstore.yaml"
    file.write_text(
        "master:\n"
        "  host: 0.0.0.0\n"
        "  directory_port: 99999\n"
        "  grace: 5\n"
        "segmnt:\n"
        "  port: 1\n"
        "segment:\n"
        "  masters: [a:1, b:x]\n"
        "  pinned_fraction_max: low\n"
        "admin:\n"
        "  timeout_ms: {a: 1}\n"
        "  master: a:1\n"
        "  master: b:1\n"
    )
    found, _ = check_file(file)
    assert [re.sub(r"^.*?:(\d+): ", r"\1 ", fault).split(": ")[0] for fault in found] == [
        "3 master.directory_port",
        "4 master.grace",
        "5 segmnt",
        "8 segment.masters",
        "9 segment.pinned_fraction_max",
        "10 admin",
        "11 admin.timeout_ms",
    ]
    assert "did you mean grace_s?" in found[1]
    assert "did you mean segment?" in found[2]
    assert "master is given twice, again in line 13: keep one" in found[5]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[" * 3000, "nested too deeply"),
        ("segment: [1, 2\n", r":2: not YAML: expected ',' or '\]'"),
        ("segment: 5\n", ":1: segment: segment consists of lines 'name: value'"),
        ("- a\n", "the file consists of lines 'name: value'"),
        ("segment:\n  port: 1\n  port: 2\n", "port is given twice"),
        ("a: &a [*a]\n", "no such section; the sections are master, segment, up, admin"),
        ("segment:\n  masters: &a [*a]\n", "needs one value"),
        ("segment: !!python/object:os.system {port: 1}\n", ""),
        ("x: " + "1" * (1 << 20), "larger than 1 MiB"),
    ],
)
def test_a_file_that_is_not_of_our_form_is_refused(text: str, fault: str, tmp_path: Path) -> None:
    file = tmp_path / "kvstore.yaml"
    file.write_text(text)
    found, _ = check_file(file)
    assert (re.search(fault, found[0]) and len(found) == 1) if fault else not found


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "binary"):
        (fault,) = faults(SegmentSettings, file=path)
        assert fault.startswith(f"{path}: the configuration file can't be read: ") and "\n" not in fault


def test_faults_of_another_commands_section_are_left_to_it_but_not_unknown_names(tmp_path: Path) -> None:
    file = tmp_path / "kvstore.yaml"
    file.write_text("master:\n  directory_port: many\n")
    assert given(SegmentSettings, file=file).settings.port == 7450
    file.write_text("master:\n  directory_prot: 1\n")
    (fault,) = faults(SegmentSettings, file=file)
    assert fault == f"{file}:2: master.directory_prot: no such setting; did you mean directory_port?"


@pytest.mark.parametrize("setting", ["object_bytes_min", "high_watermark", "low_watermark"])
def test_a_setting_that_an_earlier_release_had_is_named_with_what_to_do(tmp_path: Path, setting: str) -> None:
    file = tmp_path / "kvstore.yaml"
    file.write_text(f"segment:\n  {setting}: 1\n")
    (fault,) = faults(SegmentSettings, file=file)
    assert fault.startswith(f"{file}:2: segment.{setting}: no such setting; earlier releases had it, and ")
    assert fault.endswith(": take it out")


# ---- the environment ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("KVSTORE_SEGMENT_CAPACTY", "did you mean KVSTORE_SEGMENT_CAPACITY?"),
        ("KVSTORE_SEGMNET_PORT", "did you mean KVSTORE_SEGMENT_PORT?"),
        ("kvstore_segment_port", "did you mean KVSTORE_SEGMENT_PORT?"),
        ("KVSTORE_TOKENFILE", "did you mean KVSTORE_TOKEN_FILE?"),
        ("KVSTORE_XYZ", "unset it"),
        ("KVSTORE_SEGMENT_OBJECT_BYTES_MIN", "earlier releases had it, and slots come by need: unset it"),
        (
            "KVSTORE_SEGMENT_HIGH_WATERMARK",
            "earlier releases had it, and a segment evicts what it needs: unset it",
        ),
    ],
)
@pytest.mark.parametrize("settings_class", SECTIONS)
def test_a_variable_that_nothing_reads_is_refused_with_a_suggestion(
    name: str, meant: str, settings_class: type[Settings]
) -> None:
    (fault,) = faults(settings_class, environ={name: "1"})
    assert fault.startswith(f"environment {name}: nothing reads it; ") and meant in fault


def test_what_kubernetes_injects_for_services_of_our_names_is_passed_over() -> None:
    environ = {}
    for service in ("KVSTORE", "KVSTORE_SEGMENT", "KVSTORE_MASTER", "KVSTORE_SEGMENT_HTTP"):
        environ |= {
            f"{service}_SERVICE_HOST": "10.0.0.1",
            f"{service}_SERVICE_PORT": "7450",
            f"{service}_SERVICE_PORT_DATA": "7450",
            f"{service}_PORT": "tcp://10.0.0.1:7450",
            f"{service}_PORT_7450_TCP": "tcp://10.0.0.1:7450",
            f"{service}_PORT_7450_TCP_PROTO": "tcp",
            f"{service}_PORT_7450_TCP_PORT": "7450",
            f"{service}_PORT_7450_TCP_ADDR": "10.0.0.1",
        }
    loaded = given(SegmentSettings, environ=environ)
    assert loaded.settings == given(SegmentSettings).settings
    assert loaded.service_links == sorted(environ)


def test_every_variable_that_the_product_reads_is_known() -> None:
    quoted = set()
    for room in ("kvstore", "client", "hicache_adapter", "native", "deploy"):
        for path in (REPOSITORY / room).rglob("*"):
            if path.suffix in (".py", ".cpp", ".hpp") and "tests" not in path.parts:
                quoted |= set(re.findall(r'"(KVSTORE_[A-Z_]*[A-Z])"', path.read_text()))
    assert "KVSTORE_UCX_ALLOW_UNSAFE_TRANSPORTS" in quoted
    assert list(unknown_variables(dict.fromkeys(quoted, "1"), known_variables())) == []


# ---- the declarations --------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", EVERY_SETTING, ids=lambda d: f"{d.section}.{d.name}")
def test_every_setting_says_what_it_is(declared: Declaration) -> None:
    assert re.fullmatch(r".+\.", declared.description)
    assert declared.kind != "text" or declared.name.endswith("host")
    if declared.field.annotation in (int, float):
        assert declared.bounds


@pytest.mark.parametrize("declared", EVERY_SETTING, ids=lambda d: f"{d.section}.{d.name}")
def test_the_bounds_of_a_number_are_accepted_and_what_lies_beyond_is_not(declared: Declaration) -> None:
    settings_class = next(c for c in SECTIONS if c.section == declared.section)
    for constraint in declared.field.metadata:
        for name, step in (("ge", -1), ("le", 1)):
            bound = getattr(constraint, name, None)
            if bound is not None:
                given(settings_class, {declared.name: str(bound)} | what_must_fit(declared.name))
                (fault,) = faults(settings_class, {declared.name: str(bound + step)})
                assert f"equal to {f'{bound:g}' if isinstance(bound, float) else bound}" in fault


def what_must_fit(name: str) -> dict[str, str | None]:
    """Other settings that the bound of this one goes with."""
    return {
        "heartbeat_interval_ms": {"heartbeat_timeout_s": "120"},
    }.get(name, {})


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"metadata": "rockdb:///x"}, "names no kind of store: rocksdb:///DIRECTORY or etcd://"),
        ({"metadata": "/var/lib/kvstore"}, "names no kind of store"),
        ({"metadata": "etcd://"}, "names no etcd"),
        ({"heartbeat_timeout_s": "0.01"}, r"must be at least 2 times heartbeat_interval_ms \(1000\)"),
        ({"directory_port": "7441"}, r"directory_port \(7441\), control_port \(7441\) .* must differ"),
    ],
)
def test_what_no_master_could_work_with_is_refused_before_it_starts(
    values: dict[str, str | None], text: str
) -> None:
    (fault,) = faults(MasterSettings, values)
    assert re.search(text, fault) and "\n" not in fault
    given(MasterSettings, {"directory_port": "0", "control_port": "0", "http_port": "0"})


def test_a_pool_that_no_segment_could_have_is_refused_by_up_too() -> None:
    (fault,) = faults(UpSettings, {"size": "8"})
    assert "a pool has 1.0 MiB to" in fault


def test_the_choices_are_those_that_the_code_has(tmp_path: Path) -> None:
    assert set(METADATA_SCHEMES) == set(metadata_schemes())
    choices = {f"{d.section}.{d.name}": d.choices for d in EVERY_SETTING}
    assert set(choices["master.placement_policy"]) == set(POLICIES)
    for policy in choices["segment.eviction_policy"]:
        SegmentStore(capacity_bytes=1 << 20, pool_id=b"p" * 16, eviction_policy=policy).close()
    with pytest.raises(ValueError, match=f"known: {', '.join(choices['segment.eviction_policy'])}$"):
        SegmentStore(capacity_bytes=1 << 20, pool_id=b"p" * 16, eviction_policy="none")


def test_a_name_that_no_class_has_is_refused_by_the_class_too() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        SegmentSettings(no_such_setting="1")  # type: ignore[call-arg]


# ---- the default directories -------------------------------------------------------------------------------


def test_state_lies_where_the_desktop_convention_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/kv")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    for state_home, base in (
        (None, "/home/kv/.local/state"),
        ("", "/home/kv/.local/state"),
        ("relative", "/home/kv/.local/state"),  # to be ignored, says the convention
        ("/var/lib", "/var/lib"),
    ):
        if state_home is not None:
            monkeypatch.setenv("XDG_STATE_HOME", state_home)
        assert given(MasterSettings).settings.metadata == f"rocksdb://{base}/kvstore/master"
        assert given(SegmentSettings).settings.data_dir == Path(base) / "kvstore/segment"
        assert given(UpSettings).settings.data_dir == Path(base) / "kvstore"


@pytest.mark.parametrize(
    ("settings_class", "option"),
    [(MasterSettings, "--metadata"), (SegmentSettings, "--data-dir"), (UpSettings, "--data-dir")],
)
def test_without_any_home_the_option_to_give_is_named(
    settings_class: type[Settings], option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 54321)
    (fault,) = faults(settings_class)
    assert fault.startswith(f"{option}: there is no home directory to keep it in") and "user 54321" in fault
