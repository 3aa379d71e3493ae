"""A job that released its slices has no pods whose events would wake it."""

from tests.support.builders import make_plan
from tests.support.scenes import Scene
from trainingjob_api.status.world_status import AdmissionBackOff
from trainingjob_operator.core.decide.decisions import Wait
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.times import format_time
from trainingjob_operator.shell.reconcile import WAITING_REQUEUE_SECONDS, _requeue_delay


def test_a_back_off_for_quota_ends_in_time() -> None:
    scene = Scene(plan=make_plan(2, 4, scheduling={"queueName": "research"}))
    scene.status = scene.status.model_copy(
        update={"admission": AdmissionBackOff(releases=1, released=format_time(scene.now))}
    )
    decision = scene.decide()

    assert isinstance(decision, Wait)
    assert decision.reason == Reason.QUOTA_BACK_OFF
    assert _requeue_delay(scene.plan, scene.see(), decision, scene.status, scene.now) == WAITING_REQUEUE_SECONDS
