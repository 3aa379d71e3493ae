"""Pod profiles in validation and plan: known names, the profile of an accelerator, its network, and its mounts."""

from dataclasses import replace

import pytest

from tests.support.builders import spec_manifest
from trainingjob_operator.core.catalog import BUILTIN, Catalog
from trainingjob_operator.core.planner.pod_profile import PodProfile, dump_part
from trainingjob_operator.core.validation.validate import ValidationResult, validate_job, validate_manifest

MOUNTS = {"volumeMounts": [{"name": "gib", "mountPath": "/nccl"}]}
FAST = PodProfile("fast", container_json=dump_part(MOUNTS), accelerators=("nvidia-h200",), network=99e9)
PLAIN = PodProfile("plain")
CATALOG = Catalog(BUILTIN.hardware.with_profiles([FAST, PLAIN]))
GPUS = {"accelerator": "nvidia-h200", "topology": "8", "count": 2}


def validate(catalog: Catalog = CATALOG, **sections: object) -> ValidationResult:
    return validate_job("demo", spec_manifest(**sections), catalog)


def test_a_profile_without_a_definition_is_rejected_with_the_nearest() -> None:
    (problem,) = validate(scheduling={"podProfile": "fats"}).problems

    assert str(problem) == (
        "spec.scheduling.podProfile: fats must be a pod profile that administrators defined, which are fast and plain. "
        "Administrators add it to `podProfiles` of the chart; the command line reads it with `--pod-profiles`. "
        "Nearest legal value: fast."
    )


def test_a_profile_of_other_namespaces_is_rejected_and_not_given() -> None:
    mine = replace(FAST, namespaces=("research",))
    catalog = Catalog(BUILTIN.hardware.with_profiles([mine, PLAIN]))
    named, given = spec_manifest(scheduling={"podProfile": "fast"}), spec_manifest(slices=GPUS)

    (problem,) = validate_job("demo", named, catalog, "prod").problems
    assert str(problem) == (
        "spec.scheduling.podProfile: fast is for jobs of other namespaces. Ask an administrator to add this one to the "
        "profile. Nearest legal value: plain."
    )
    for namespace, want in (("prod", None), ("research", mine), ("", mine)):
        plan = validate_job("demo", given, catalog, namespace).plan
        assert plan
        assert plan.shape.profile == want
    assert validate_job("demo", named, catalog, "research").plan
    manifest = {"metadata": {"name": "demo", "namespace": "prod"}, "spec": named}
    assert [one.path for one in validate_manifest(manifest, catalog).problems] == ["spec.scheduling.podProfile"]


def test_without_profiles_the_message_says_so() -> None:
    (problem,) = validate(BUILTIN, scheduling={"podProfile": "fast"}).problems
    assert "administrators defined, but there are none." in str(problem)


@pytest.mark.parametrize(
    ("sections", "want"),
    [
        ({}, None),
        ({"slices": GPUS}, FAST),
        ({"slices": GPUS, "scheduling": {"podProfile": "plain"}}, PLAIN),
        ({"scheduling": {"podProfile": "fast"}}, FAST),
    ],
    ids=["none", "of the accelerator", "named", "named elsewhere"],
)
def test_the_plan_has_the_profile_of_the_job(sections: dict, want: PodProfile | None) -> None:
    plan = validate(**sections).plan

    assert plan
    assert plan.shape.profile == want
    assert (plan.shape.rates.network == 99e9) == (want is FAST)


def test_a_volume_of_the_job_where_the_profile_mounts_one_is_rejected() -> None:
    volumes = [
        {"name": "shared", "claimName": "shared", "mountPath": "/shared"},
        {"name": "mine", "claimName": "mine", "mountPath": "/nccl"},
    ]
    runtime = {"volumes": volumes}
    mine = {"scheduling": {"podProfile": "fast"}, "runtime": spec_manifest()["runtime"] | runtime}
    (problem,) = validate(**mine).problems

    assert problem.path == "spec.runtime.volumes[1].mountPath"
    assert "the pod profile fast mounts its volume gib there" in problem.message
    assert validate(**mine | {"scheduling": {"podProfile": "plain"}}).problems == ()


def test_a_catalog_reaches_another_process_with_its_profiles() -> None:
    assert CATALOG.added.add().hardware.profiles == {"fast": FAST, "plain": PLAIN}
    assert CATALOG.hardware.with_rows([]).profiles == CATALOG.hardware.profiles
    assert (FAST.metadata, FAST.spec, FAST.container) == ({}, {}, MOUNTS)


def test_pods_that_tokenize_text_get_the_users_of_a_profile_alone() -> None:
    spec = {"securityContext": {"runAsUser": None}, "hostNetwork": True}
    profile = replace(FAST, spec_json=dump_part(spec)).for_preparation

    assert (profile.spec, profile.container, profile.metadata) == ({"securityContext": {"runAsUser": None}}, {}, {})
    assert PLAIN.for_preparation == PLAIN
