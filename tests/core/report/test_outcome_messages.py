"""Skipped updates: the number from which they are reported, the place and the frequency."""

from tests.support.scenes import Scene, trained
from trainingjob_api.protocol import Progress
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.outcome_messages import SKIP_WARNING_THRESHOLD

WORDS = (
    "10 of the newest 100 updates up to step 40 were skipped: the loss was not finite, or a spike. Check the data "
    "of those steps in metrics.jsonl, or lower `spec.optimizer.learningRate`"
)


def skip(scene: Scene, lately: int) -> Scene:
    return scene.hear_slice(0, 1, progress=Progress(step=40, loss=2.5, skipped=50, skipped_lately=lately))


def degraded(scene: Scene) -> tuple[str, str, str]:
    one = next(one for one in scene.status.conditions if one.type == "Degraded")
    return one.status, one.reason, one.message


def messages_of(scene: Scene) -> list[tuple[bool, str]]:
    return [(one.is_warning, one.message) for one in scene.happenings() if one.reason == Reason.UPDATES_SKIPPED]


def test_many_skipped_updates_are_one_event_and_a_condition() -> None:
    scene = skip(trained(), SKIP_WARNING_THRESHOLD)
    assert messages_of(scene) == [(True, WORDS)]
    scene.step(1.0)
    assert degraded(scene) == ("True", Reason.UPDATES_SKIPPED, WORDS)
    assert (scene.status.phase, scene.status.display.reason) == ("Degraded", Reason.UPDATES_SKIPPED)
    assert messages_of(scene) == []

    skip(scene, SKIP_WARNING_THRESHOLD - 1).step(1.0)

    assert degraded(scene)[0] == "False"
    assert scene.status.phase == "Running"


def test_few_are_what_a_job_may_have() -> None:
    scene = skip(trained(), SKIP_WARNING_THRESHOLD - 1)

    assert messages_of(scene) == []
    scene.step(1.0)
    assert degraded(scene)[0] == "False"
