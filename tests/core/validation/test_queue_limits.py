"""Warnings about a ClusterQueue that admits fewer slices than a job may use, or preempts a minimum first."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import make_plan
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.pod_profile import PodProfile
from trainingjob_operator.core.validation.queue_limits import describe_queue_limits
from trainingjob_operator.core.validation.queue_state import QueueConfig


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
}


@pytest.mark.parametrize(("plan", "cluster_queue", "warnings"), CASES.values(), ids=CASES.keys())
def test_limits_of_a_cluster_queue(plan: Plan, cluster_queue: dict[str, Any], warnings: list[str]) -> None:
    assert list(describe_queue_limits(plan, QueueConfig(cluster_queue=cluster_queue), "low")) == warnings


def test_a_stopped_queue_is_named_before_its_quota() -> None:
    config = QueueConfig(cluster_queue=queue([{"cpu": "0"}], stopPolicy="Hold"))

    stopped, quota = describe_queue_limits(ELASTIC, config, "low")
    assert stopped == (
        "spec.scheduling.queueName: ClusterQueue `gpus` has the stop policy Hold and admits no slice. Set its "
        "`spec.stopPolicy` to None."
    )
    assert [quota] == NONE


PREEMPTING = {"preemption": {"withinClusterQueue": "LowerPriority"}}
PRIORITIES: dict[str, tuple[Plan, dict[str, Any], str, bool]] = {
    "slices of one priority": (ELASTIC, queue(**PREEMPTING), "", True),
    "elastic slices of another priority": (ELASTIC, queue(**PREEMPTING), "low", False),
    "a fixed size": (FIXED, queue(**PREEMPTING), "", False),
    "the ClusterQueue is unknown": (ELASTIC, {}, "", True),
    "no preemption": (ELASTIC, queue(preemption={"withinClusterQueue": "Never"}), "", False),
    "no preemption by default": (ELASTIC, queue(), "", False),
    "a cohort may reclaim": (ELASTIC, queue(cohortName="all"), "", True),
}


@pytest.mark.parametrize(("plan", "cluster_queue", "priority", "warns"), PRIORITIES.values(), ids=PRIORITIES.keys())
def test_preemption_of_a_minimum_before_elastic_slices(
    plan: Plan, cluster_queue: dict[str, Any], priority: str, warns: bool
) -> None:
    warning = (
        "spec.slices.max: 4 is above `min` (2), and the elastic slices have the priority of the minimum. Among equal "
        "priorities, Kueue preempts the slice first that it admitted last, also a slice of the minimum of this job or "
        "of another one. Ask an administrator to set `kueue.elasticWorkloadPriority` of the chart to a "
        "WorkloadPriorityClass below that of the jobs."
    )
    config = QueueConfig(cluster_queue=cluster_queue)

    assert list(describe_queue_limits(plan, config, priority)) == ([warning] if warns else [])


def test_a_job_without_a_queue_has_no_warning() -> None:
    assert describe_queue_limits(make_plan(2, 4), QueueConfig(cluster_queue=queue([{"cpu": "0"}])), "") == ()
