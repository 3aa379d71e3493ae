"""The version of PodGroups that the operator uses, and the warning if the API server serves only others."""

import pytest

from tests.support.builders import make_plan
from trainingjob_operator.core.pod_groups import KNOWN_VERSIONS, describe_unknown_versions, select_version

SELECTED = {
    "both of 1.37": (("v1alpha3", "v1beta1"), "v1beta1"),
    "alpha of 1.37": (("v1alpha3",), "v1alpha3"),
    "1.36": (("v1alpha2",), "v1alpha2"),
    "a later one too": (("v1", "v1alpha3"), "v1alpha3"),
    "only a later one": (("v1",), ""),
    "none": ((), ""),
}


@pytest.mark.parametrize(("served", "version"), SELECTED.values(), ids=SELECTED.keys())
def test_the_newest_known_version_is_used(served: tuple[str, ...], version: str) -> None:
    assert select_version(served) == version


def test_a_cluster_with_later_versions_alone_is_reported() -> None:
    plan = make_plan(2, 4, scheduling={"startTimeout": "20m"})

    (warning,) = describe_unknown_versions(plan, ("v2", "v1"))

    assert warning == (
        "spec.scheduling.startTimeout: the API server serves PodGroups only as v1 and v2, and this operator knows "
        "v1beta1, v1alpha3 and v1alpha2. It creates none. A job that holds only a part of its nodes is released after "
        "20m instead. Upgrade the operator."
    )


SILENT = {
    "no version is served": (make_plan(2, 4), ()),
    "a known version is served": (make_plan(2, 4), ("v1", *KNOWN_VERSIONS)),
    "Kueue decides": (make_plan(2, 4, scheduling={"queueName": "research"}), ("v1",)),
    "the job has one pod": (make_plan(1, 1, hosts=1), ("v1",)),
}


@pytest.mark.parametrize(("plan", "served"), SILENT.values(), ids=SILENT.keys())
def test_nothing_is_reported_if(plan, served) -> None:
    assert describe_unknown_versions(plan, served) == ()
