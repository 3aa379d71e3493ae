"""Pod profiles of an administrator: shipped and own ones are read, invalid ones are left out with the reason."""

from pathlib import Path
from typing import Any

import pytest

from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.pod_profile import PodProfile, dump_part
from trainingjob_operator.shell.added_profiles import (
    AddedFiles,
    ProfileTable,
    load_catalog,
    load_profiles,
    read_profiles,
)
from trainingjob_operator.shell.shipped_profiles import SHIPPED

ROW: dict[str, Any] = {
    "accelerators": ["nvidia-h100"],
    "network": 1e9,
    "metadata": {"annotations": {"net.example/interfaces": "all"}, "labels": {"fast": "yes"}},
    "spec": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"},
    "container": {"env": [{"name": "NCCL_NET", "value": "IB"}]},
    "source": "https://cloud.example",
}


def read(rows: Any) -> ProfileTable:
    return read_profiles(rows, BUILTIN.accelerators)


def test_a_profile_has_the_parts_of_its_row() -> None:
    table = read({"fast": ROW})

    assert table == ProfileTable(
        (
            PodProfile(
                "fast",
                dump_part(ROW["metadata"]),
                dump_part(ROW["spec"]),
                dump_part(ROW["container"]),
                ("nvidia-h100",),
                1e9,
                "https://cloud.example",
            ),
        )
    )
    assert (table.profiles[0].metadata, table.profiles[0].spec) == (ROW["metadata"], ROW["spec"])
    assert hash(table.profiles[0]) == hash(read({"fast": ROW}).profiles[0])


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_is_valid_and_names_its_source(name: str) -> None:
    table = read({"mine": {"from": name}})

    assert table.invalid_rows == ()
    assert table.profiles[0].source.startswith("https://")


def test_own_fields_override_a_shipped_profile() -> None:
    own = {"from": "gke-a3-ultra", "accelerators": [], "container": {"env": [{"name": "NCCL_NET", "value": "Socket"}]}}
    profile = read({"mine": own}).profiles[0]

    assert (profile.accelerators, profile.network) == ((), 50e9)
    assert profile.container["env"] == own["container"]["env"]
    assert profile.container["volumeMounts"] == SHIPPED["gke-a3-ultra"]["container"]["volumeMounts"]


INVALID: dict[str, tuple[str, Any, str]] = {
    "a name with capitals": ("Fast", ROW, "the name must be at most 63 lower-case letters, digits, '.' and '-'."),
    "no object": ("fast", [1], "the row: Input should be"),
    "an unknown field": ("fast", ROW | {"pod": {}}, "pod: Extra inputs are not permitted."),
    "an unknown shipped profile": ("fast", {"from": "gke-a3-ulta"}, "Did you mean gke-a3-ultra?"),
    "a shipped profile with a bad field": ("fast", {"from": "gke-tpu", "network": -1}, "network: "),
    "no accelerator": ("fast", ROW | {"accelerators": ["h100"]}, "h100 is not in the hardware table."),
    "a rate below 0": ("fast", ROW | {"network": -1}, "network: "),
    "containers": ("fast", ROW | {"spec": {"containers": []}}, "spec.containers: is not a field of a profile, which"),
    "a command": ("fast", ROW | {"container": {"command": ["sh"]}}, "container.command: is not a field of a profile"),
    "a label of the operator": (
        "fast",
        ROW | {"metadata": {"labels": {"trainingjob.dev/job": "x"}}},
        "metadata.labels.trainingjob.dev/job: the operator sets this label.",
    ),
    "volumes that are no list": ("fast", ROW | {"spec": {"volumes": {}}}, "spec.volumes: must be a list of objects"),
    "a volume without a name": (
        "fast",
        ROW | {"spec": {"volumes": [{"hostPath": {}}]}},
        "spec.volumes: must be a list",
    ),
    "a volume of the operator": ("fast", ROW | {"spec": {"volumes": [{"name": "shm"}]}}, "shm is the name of a volume"),
    "a volume of a job": ("fast", ROW | {"spec": {"volumes": [{"name": "volume-a"}]}}, "volume-a is the name"),
    "two volumes of a name": ("fast", ROW | {"spec": {"volumes": [{"name": "a"}] * 2}}, "a is listed twice."),
    "a variable of the operator": (
        "fast",
        ROW | {"container": {"env": [{"name": "TRAININGJOB_TOKEN"}]}},
        "container.env: the operator sets TRAININGJOB_TOKEN.",
    ),
    "privileges without escalation": (
        "fast",
        ROW | {"container": {"securityContext": {"privileged": True}}},
        "`privileged: true` requires `allowPrivilegeEscalation: true`.",
    ),
}


@pytest.mark.parametrize(("name", "row", "words"), INVALID.values(), ids=INVALID.keys())
def test_an_invalid_row_is_left_out_with_the_reason(name: str, row: Any, words: str) -> None:
    table = read({name: row, "good": {"from": "openshift"}})

    assert [profile.name for profile in table.profiles] == ["good"]
    assert [(one.table, one.name) for one in table.invalid_rows] == [("podProfiles", name)]
    assert words in table.invalid_rows[0].reason


def test_an_accelerator_has_one_profile() -> None:
    table = read({"fast": ROW, "faster": ROW})

    assert [profile.name for profile in table.profiles] == ["fast"]
    assert "jobs on nvidia-h100 get the profile fast, which is listed before." in table.invalid_rows[0].reason


def test_namespaces_may_have_different_profiles_for_an_accelerator() -> None:
    rows = {
        "fast": ROW | {"namespaces": ["a", "b"]},
        "faster": ROW | {"namespaces": ["c"]},
        "third": ROW | {"namespaces": ["b", "d"]},
        "all": ROW,
        "wrong": {"namespaces": ["Research"]},
    }
    table = read(rows)

    assert {profile.name: profile.namespaces for profile in table.profiles} == {"fast": ("a", "b"), "faster": ("c",)}
    assert [row.name for row in table.invalid_rows] == ["third", "all", "wrong"]


def test_a_volume_may_be_mounted_twice() -> None:
    mounts = [{"name": "a", "mountPath": "/a"}, {"name": "a", "mountPath": "/b"}]
    assert read({"fast": ROW | {"container": {"volumeMounts": mounts}}}).invalid_rows == ()


def test_a_file_has_profiles_for_added_accelerators(tmp_path: Path) -> None:
    rows, profiles = tmp_path / "rows.yaml", tmp_path / "profiles.yaml"
    rows.write_text("nvidia-l40s: {platform: cuda, resource: nvidia.com/gpu, topologies: {'4': {}}}")
    profiles.write_text("fast: {accelerators: [nvidia-l40s], network: 1e9}\nbroken: 1")

    catalog, invalid = load_catalog(AddedFiles(accelerators=rows, pod_profiles=profiles))

    assert catalog.hardware.find_profile(None, "nvidia-l40s") == catalog.hardware.profiles["fast"]
    assert [row.name for row in invalid] == ["broken"]
    assert load_profiles(None, ()) == ProfileTable()


def test_a_file_that_is_no_map_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "profiles.yaml"
    path.write_text("[1]")

    assert [str(row) for row in load_profiles(path, ()).invalid_rows] == [
        "podProfiles: must be a map from names to pod profiles."
    ]
