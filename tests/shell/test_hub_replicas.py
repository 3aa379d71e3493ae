"""Slices that train as replicas: each host receives the directive of the world of its slice."""

from dataclasses import replace

from tests.shell.test_hub import caller, make_world, train
from tests.support.builders import KEY
from trainingjob_api.protocol import Directive
from trainingjob_operator.core.report.job_events import JobDirective
from trainingjob_operator.shell.hub import Hub


async def test_members_of_each_replica_receive_the_directive_of_their_world() -> None:
    hub = Hub(lambda: 0.0, lambda namespace, name: None)
    leaving = JobDirective(Directive.LEAVE, make_world(3, "c"))
    replicas = (replace(train(2, "a", "b"), live_slices=(0, 1)), leaving, JobDirective(Directive.WAIT))
    hub.publish(KEY, JobDirective(Directive.TRAIN, make_world(3, "a", "b", "c"), replicas=replicas))

    answers = {pod: await hub.answer(caller(pod), "a", 0.0) for pod in ("a", "b", "c", "d")}

    received = {
        pod: (answer.directive, answer.world and answer.world.generation) for pod, answer in answers.items() if answer
    }
    assert received == {
        "a": (Directive.TRAIN, 2),
        "b": (Directive.TRAIN, 2),
        "c": (Directive.LEAVE, 3),
        "d": (Directive.WAIT, None),
    }
    assert answers["a"] is answers["b"]
    assert answers["a"] is not None
    assert answers["a"].live_slices == (0, 1)
