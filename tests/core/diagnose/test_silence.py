"""Lost heartbeats: a lost heartbeat alone is no failure, and other signals decide."""

from collections.abc import Callable

import pytest

from tests.support.scenes import Scene, kind, lose_node, operate_from, trained
from trainingjob_api.protocol import Phase, Progress
from trainingjob_operator.core.decide.decisions import Claim, EndWorld, Wait
from trainingjob_operator.core.reasons import Reason


def all_silent() -> Scene:
    return trained().silence(0, age=60.0).silence(1, age=60.0)


SILENCE: dict[str, tuple[Callable[[], Scene], tuple[object, ...]]] = {
    "a slice falls silent and the others stop": (
        lambda: trained().silence(1).hear_slice(0, still=6.0),
        (Claim, (0,), Reason.HEARTBEAT_LOST, False),
    ),
    "a slice falls silent and the others go on": (lambda: trained().silence(1), (Wait, Reason.HOST_UNCERTAIN)),
    "a slice is silent for less than the window": (
        lambda: trained().silence(1, age=4.0).hear_slice(0, still=4.0),
        (Wait, Reason.TRAINING),
    ),
    "a slice falls silent while the others compile": (
        lambda: trained().silence(1).hear_slice(0, phase=Phase.COMPILING, still=6.0),
        (Wait, Reason.HOST_UNCERTAIN),
    ),
    "a slice falls silent and the others compile for long": (
        lambda: trained().silence(1, age=21.0).hear_slice(0, phase=Phase.COMPILING, still=21.0),
        (Claim, (0,), Reason.HEARTBEAT_LOST, False),
    ),
    "steps longer than the window are no standstill": (
        lambda: trained().silence(1).hear_slice(0, still=6.0, progress=Progress(step=10, step_seconds=4.0)),
        (Wait, Reason.HOST_UNCERTAIN),
    ),
    "a slice falls silent and its node is not ready": (
        lambda: lose_node(trained().silence(1), 1, 0),
        (Claim, (0,), Reason.NODE_LOST, False),
    ),
    "all fall silent: the operator hears nothing": (
        all_silent,
        (Wait, Reason.HOST_UNCERTAIN),
    ),
    "all fall silent and one node is not ready": (
        lambda: lose_node(all_silent(), 1, 1),
        (EndWorld, Reason.WAITING_FOR_SLICES),
    ),
    "all fall silent and one node is not ready, as little as the operator's own: the API server was away": (
        lambda: operate_from(lose_node(all_silent(), 1, 1), ready=False, age=200.0),
        (Wait, Reason.HOST_UNCERTAIN),
    ),
    "all fall silent and one node is not ready, as little as the operator's own was just now": (
        lambda: operate_from(lose_node(all_silent(), 1, 1), ready=True, age=89.0),
        (Wait, Reason.HOST_UNCERTAIN),
    ),
    "all fall silent and one node is not ready; the operator's own has been for long": (
        lambda: operate_from(lose_node(all_silent(), 1, 1), ready=True, age=90.0),
        (EndWorld, Reason.WAITING_FOR_SLICES),
    ),
    "all fall silent and one pod is being deleted": (
        lambda: all_silent().delete_pod(1, 1),
        (EndWorld, Reason.WAITING_FOR_SLICES),
    ),
    "a host speaks though its node is not ready": (lambda: lose_node(trained(), 1, 0), (Wait, Reason.TRAINING)),
}


@pytest.mark.parametrize(("scene", "want"), SILENCE.values(), ids=SILENCE.keys())
def test_silence(scene: Callable[[], Scene], want: tuple[object, ...]) -> None:
    assert kind(scene().decide()) == want
