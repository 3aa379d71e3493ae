"""A job without pods under Kueue: no event of a pod wakes it."""

from datetime import timedelta

import pytest

from tests.support.builders import jobset_manifest, make_plan
from tests.support.scenes import Scene
from trainingjob_api.status.world_status import AdmissionBackOff
from trainingjob_operator.core.decide.decisions import Wait
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time
from trainingjob_operator.shell.reconcile import IDLE_REQUEUE_SECONDS, WAITING_REQUEUE_SECONDS, _requeue_delay


def test_a_back_off_for_quota_ends_in_time() -> None:
    scene = Scene(plan=make_plan(2, 4, scheduling={"queueName": "research"}))
    scene.status = scene.status.model_copy(
        update={"admission": AdmissionBackOff(releases=1, released=format_time(scene.now))}
    )
    decision = scene.decide()

    assert isinstance(decision, Wait)
    assert decision.reason == Reason.QUOTA_BACK_OFF
    assert _requeue_delay(scene.plan, scene.see(), decision, scene.status, scene.now) == WAITING_REQUEUE_SECONDS


@pytest.mark.parametrize(("age", "want"), [(2.0, WAITING_REQUEUE_SECONDS), (31.0, IDLE_REQUEUE_SECONDS)])
def test_kueue_s_reason_is_read_again_while_the_jobset_is_new(age: float, want: float) -> None:
    """Kueue writes the reason after it has created the Workload, and the operator may have read in between."""
    scene = Scene(plan=make_plan(2, 4, scheduling={"queueName": "nowhere"}))
    scene.jobsets[0] = jobset_manifest(scene.plan, 0, suspend=True)
    scene.jobsets[0]["metadata"]["creationTimestamp"] = format_time(scene.now - timedelta(seconds=age))
    decision = scene.decide()

    assert _requeue_delay(scene.plan, scene.see(), decision, scene.status, scene.now) == want
