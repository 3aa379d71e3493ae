"""Rules about a pod's grace period: whether a save fits into it, and whether the node grants it."""

import math
from collections.abc import Iterator

from trainingjob_api.base import seconds
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.problem import Problem
from trainingjob_api.running import LEAVE_MARGIN
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import Sizes
from trainingjob_operator.core.planner.saving import measure_save
from trainingjob_operator.core.units import size, span
from trainingjob_operator.core.validation.rule import PlanWarning, Rule
from trainingjob_operator.core.validation.validate_sizes import READS

PATH = "spec.runtime.terminationGracePeriod"
FIELD = "runtime.terminationGracePeriod"
FEWEST, MOST = 2 * LEAVE_MARGIN, 3600
"""Seconds. GKE drains a node for up to an hour before an upgrade, and then deletes the remaining pods."""
SPOT_SECONDS = 15
"""Seconds that the kubelet of a GKE spot machine gives non-system pods, of the 30 s after the preemption notice."""
SPOT_LABELS = ("cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible")
"""Label and taint of GKE's preemptible nodes."""


def check_grace(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A pod that is deleted needs some time to leave, and nobody waits for it for ever."""
    grace = spec.runtime.termination_grace_period
    if seconds(grace) < FEWEST:
        message = f"{grace} is too short: {LEAVE_MARGIN} s are the agent's, and the trainer needs as many."
        yield Problem(PATH, grace, message, (f"{FEWEST}s",))
    elif seconds(grace) > MOST:
        message = f"{grace} is too long: a node that is drained is not held for more than 1h."
        yield Problem(PATH, grace, message, ("1h",))


def warn_of_spot_grace(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A machine that is taken back does not wait for its pods."""
    grace, wanted = spec.runtime.termination_grace_period, spec.scheduling
    keys = {*wanted.node_selector, *(toleration.key for toleration in wanted.tolerations)}
    if seconds(grace) > SPOT_SECONDS and (label := next((one for one in SPOT_LABELS if one in keys), None)):
        message = (
            f"{grace} is more than nodes with {label} give a pod when their machine is taken back: {SPOT_SECONDS} s, "
            "where their node pool does not extend it. It holds for all other deletions."
        )
        yield Problem(PATH, grace, message, (f"{SPOT_SECONDS}s",))


def warn_of_short_grace(plan: Plan, _sizes: Sizes) -> Iterator[Problem]:
    """What a host saves when it leaves must go through its network in time, however fast the storage is."""
    grace, left = plan.spec.runtime.termination_grace_period, plan.spec.runtime.leave_seconds
    save, rate = measure_save(plan), plan.shape.network_per_host
    if rate and save / rate > left:
        message = (
            f"{grace} leaves {span(left)} for a save of {size(save)} from each host, which takes {span(save / rate)} "
            "at all that its network sends: a pod that is deleted loses the steps since the newest checkpoint."
        )
        yield Problem(PATH, grace, message, (f"{math.ceil(save / rate) + LEAVE_MARGIN}s",))


RULES = (Rule((FIELD,), check_grace),)
WARNINGS = (Rule((FIELD, "scheduling.nodeSelector", "scheduling.tolerations"), warn_of_spot_grace),)
PLAN_WARNINGS = (PlanWarning((*READS, FIELD), warn_of_short_grace),)
