"""A scheduler that ignores PodGroups: the condition Queued names the feature gates, and the start barrier releases."""

import pytest

from tests.core.decide.test_start_barrier import TIMEOUT, is_released, partly_scheduled
from tests.support.scenes import Scene
from trainingjob_operator.core.decide.decisions import Wait
from trainingjob_operator.core.names import pod_group
from trainingjob_operator.core.report.ignored_gangs import SETTLED_SECONDS, describe_ignored_gang
from trainingjob_operator.core.report.situation import derive_situation


def in_gang(scene: Scene) -> Scene:
    for pod in scene.pods.values():
        pod["spec"]["schedulingGroup"] = {"podGroupName": pod_group("tiny", 4)}
    return scene


def test_a_partial_gang_names_the_feature_gates_and_is_released_after_the_timeout() -> None:
    scene = in_gang(partly_scheduled(SETTLED_SECONDS))

    situation = derive_situation(scene.plan, scene.see(), Wait("", ""), None, scene.now)

    assert situation.stage == "Queued"
    assert "the scheduler has placed 3 of 4 pods of PodGroup tiny-gang-4" in situation.message
    assert "the feature gate `GenericWorkload` of kube-scheduler" in situation.message
    assert "On Kubernetes 1.36 also enable `GangScheduling`, which later releases do not have." in situation.message
    assert not is_released(scene)
    assert is_released(in_gang(partly_scheduled(TIMEOUT)))


def none_placed() -> Scene:
    scene = in_gang(partly_scheduled(TIMEOUT))
    for pod in scene.pods.values():
        pod["spec"].pop("nodeName", None)
    return scene


def after_a_world() -> Scene:
    scene = in_gang(partly_scheduled(TIMEOUT))
    trained = Scene(plan=scene.plan).place(0, 1).hear_slice(0, 1)
    trained.step()
    scene.status = trained.status
    return scene


NORMAL = {
    "no gang": lambda: partly_scheduled(TIMEOUT),
    "the scheduler is binding it": lambda: in_gang(partly_scheduled(SETTLED_SECONDS - 1.0)),
    "it waits as a whole": none_placed,
    "a pod replaces a lost one": after_a_world,
}


@pytest.mark.parametrize("make", NORMAL.values(), ids=NORMAL.keys())
def test_nothing_is_reported_about(make) -> None:
    scene = make()

    assert describe_ignored_gang(scene.see()) == ""


def test_the_scene_after_a_world_has_one() -> None:
    assert after_a_world().status.world is not None
