"""Warnings about a ClusterQueue that admits no slice of a job, or fewer than it may use."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import make_plan
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.pod_profile import PodProfile
from trainingjob_operator.core.validation.queue_limits import describe_queue_limits


def plan_of(fewest: int, most: int, **shape: Any) -> Plan:
    """Return a plan of slices with two hosts, each of which requests one CPU and the accelerators of `shape`."""
    plan = make_plan(fewest, most, scheduling={"queueName": "research"})
    return replace(plan, shape=replace(plan.shape, **shape))


ELASTIC, FIXED = plan_of(2, 4), plan_of(3, 3)
TPU = plan_of(2, 4, resource="google.com/tpu", devices_per_host=4)
PROFILED = plan_of(2, 4, profile=PodProfile("fast"))


def queue(*groups: list[dict[str, str]], borrowing: str = "", **spec: Any) -> dict[str, Any]:
    """Return a ClusterQueue: each group is a list of flavors, and each flavor maps resources to quotas."""
    limits = {"borrowingLimit": borrowing} if borrowing else {}
    resource_groups = [
        {
            "flavors": [
                {"resources": [{"name": name, "nominalQuota": quota, **limits} for name, quota in flavor.items()]}
                for flavor in flavors
            ]
        }
        for flavors in groups
    ]
    return {"metadata": {"name": "gpus"}, "spec": {"resourceGroups": resource_groups, **spec}}


def fewer(most: int) -> list[str]:
    quota = f"ClusterQueue `gpus` has quota for {most} slices"
    return [f"spec.slices.max: 4 must be at most {most}: {quota}. Set it to {most}, or raise `nominalQuota`."]


NONE = [
    (
        "spec.slices: 2 or more are needed, and ClusterQueue `gpus` has quota for 0 slices. No world starts. Raise "
        "`nominalQuota`."
    )
]
ONE = [
    (
        "spec.slices: 2 or more are needed, and ClusterQueue `gpus` has quota for 1 slice. No world starts. Raise "
        "`nominalQuota`, or create the job with at most 1 slice."
    )
]
TWO_OF_THREE = [
    (
        "spec.slices: 3 or more are needed, and ClusterQueue `gpus` has quota for 2 slices. No world starts. Raise "
        "`nominalQuota`, or create the job with at most 2 slices."
    )
]
STOPPED = [
    (
        "spec.scheduling.queueName: ClusterQueue `gpus` has the stop policy Hold and admits no slice. Set its "
        "`spec.stopPolicy` to None."
    )
]

CASES: dict[str, tuple[Plan, dict[str, Any], list[str]]] = {
    "the ClusterQueue is unknown": (ELASTIC, {}, []),
    "enough quota": (ELASTIC, queue([{"cpu": "8", "memory": "1Gi"}]), []),
    "quota for all but one slice": (ELASTIC, queue([{"cpu": "7900m"}]), fewer(3)),
    "quota below the minimum": (ELASTIC, queue([{"cpu": "2"}]), ONE),
    "a quota of zero": (ELASTIC, queue([{"cpu": "0"}]), NONE),
    "a group without flavors": (ELASTIC, queue([]), NONE),
    "slices in two flavors": (ELASTIC, queue([{"cpu": "4"}, {"cpu": "3"}]), fewer(3)),
    "a job of a fixed size in one flavor": (FIXED, queue([{"cpu": "4"}, {"cpu": "3"}]), TWO_OF_THREE),
    "the scarcest group of resources": (TPU, queue([{"cpu": "8"}], [{"google.com/tpu": "24"}]), fewer(3)),
    "the scarcest resource of a flavor": (TPU, queue([{"cpu": "6", "google.com/tpu": "16"}]), fewer(2)),
    "CPUs of a pod profile are unknown": (PROFILED, queue([{"cpu": "0"}]), []),
    "resources that no slice requests": (ELASTIC, queue([{"nvidia.com/gpu": "0"}]), []),
    "one flavor without a known limit": (ELASTIC, queue([{"cpu": "1"}, {"nvidia.com/gpu": "0"}]), []),
    "an amount in an unknown unit": (ELASTIC, queue([{"cpu": "1e3"}]), []),
    "a cohort may lend any amount": (ELASTIC, queue([{"cpu": "0"}], cohortName="all"), []),
    "a cohort may lend a limited amount": (ELASTIC, queue([{"cpu": "4"}], borrowing="2", cohort="all"), fewer(3)),
    "the ClusterQueue is stopped": (ELASTIC, queue([{"cpu": "8"}], stopPolicy="Hold"), STOPPED),
    "the ClusterQueue is not stopped": (ELASTIC, queue([{"cpu": "8"}], stopPolicy="None"), []),
}


@pytest.mark.parametrize(("plan", "cluster_queue", "warnings"), CASES.values(), ids=CASES.keys())
def test_limits_of_a_cluster_queue(plan: Plan, cluster_queue: dict[str, Any], warnings: list[str]) -> None:
    assert list(describe_queue_limits(plan, cluster_queue)) == warnings
