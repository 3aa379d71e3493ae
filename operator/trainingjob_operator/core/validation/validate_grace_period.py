"""Rules about a pod's grace period: whether a save fits into it, and whether the node grants it."""

import math
from collections.abc import Iterator

from trainingjob_api.base import seconds
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.runtime import AGENT_GRACE_SECONDS
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import SizeOutcomes
from trainingjob_operator.core.planner.snapshots import max_save_bytes
from trainingjob_operator.core.units import format_duration, format_size
from trainingjob_operator.core.validation.rule import PlanWarning, Rule
from trainingjob_operator.core.validation.validate_sizes import SIZE_FIELDS

PATH = "spec.runtime.terminationGracePeriod"
FIELD = "runtime.terminationGracePeriod"
MIN_GRACE_SECONDS, MAX_GRACE_SECONDS = 2 * AGENT_GRACE_SECONDS, 3600
"""Seconds. GKE drains a node for up to an hour before an upgrade, and then deletes the remaining pods."""
SPOT_GRACE_SECONDS = 15
"""Seconds that the kubelet of a GKE spot machine gives non-system pods, of the 30 s after the preemption notice."""
SPOT_LABELS = ("cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible")
"""Label and taint of GKE's preemptible nodes."""


def check_grace(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`runtime.terminationGracePeriod` must cover agent and trainer, and be at most 1h, the limit of a node drain."""
    grace = spec.runtime.termination_grace_period
    if seconds(grace) < MIN_GRACE_SECONDS:
        message = (
            f"{grace} must be at least {MIN_GRACE_SECONDS}s. The agent reserves {AGENT_GRACE_SECONDS} s of it, and the "
            "trainer needs at least as much."
        )
        yield Problem(PATH, grace, message, (f"{MIN_GRACE_SECONDS}s",))
    elif seconds(grace) > MAX_GRACE_SECONDS:
        message = f"{grace} must be at most 1h. A node drain does not wait longer for a pod."
        yield Problem(PATH, grace, message, ("1h",))


def warn_of_spot_grace(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A preempted machine does not wait for the full grace period of its pods."""
    grace, scheduling = spec.runtime.termination_grace_period, spec.scheduling
    keys = {*scheduling.node_selector, *(toleration.key for toleration in scheduling.tolerations)}
    if seconds(grace) > SPOT_GRACE_SECONDS and (
        label := next((spot_label for spot_label in SPOT_LABELS if spot_label in keys), None)
    ):
        message = (
            f"{grace} exceeds the {SPOT_GRACE_SECONDS} s that nodes with {label} grant a pod at preemption, unless the "
            "node pool extends them. The full period applies to all other deletions."
        )
        yield Problem(PATH, grace, message, (f"{SPOT_GRACE_SECONDS}s",))


def warn_of_short_grace(plan: Plan, _sizes: SizeOutcomes) -> Iterator[Problem]:
    """The network of a host must be able to transfer a save within the grace period."""
    grace, save_seconds = plan.spec.runtime.termination_grace_period, plan.spec.runtime.trainer_grace_seconds
    save, rate = max_save_bytes(plan), plan.shape.network_per_host
    if rate and save / rate > save_seconds:
        message = (
            f"{grace} leaves {format_duration(save_seconds)} for a save. Each host saves {format_size(save)}, which "
            f"takes {format_duration(save / rate)} at full network bandwidth. A deleted pod loses the steps since the "
            "newest checkpoint."
        )
        yield Problem(PATH, grace, message, (f"{math.ceil(save / rate) + AGENT_GRACE_SECONDS}s",))


RULES = (Rule((FIELD,), check_grace),)
WARNINGS = (Rule((FIELD, "scheduling.nodeSelector", "scheduling.tolerations"), warn_of_spot_grace),)
PLAN_WARNINGS = (PlanWarning((*SIZE_FIELDS, FIELD), warn_of_short_grace),)
