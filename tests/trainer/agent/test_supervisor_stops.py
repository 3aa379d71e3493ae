"""A whole agent whose trainer or standby is stopped by a signal: scripted trainers in real processes."""

import os
import signal

import pytest

from tests.trainer.agent.test_supervisor import exit_code, has_standby, is_training, trainers, world
from trainingjob_api.protocol import Directive, Phase


@pytest.mark.slow  # an agent looks for longer than a trainer may stand still for a moment
async def test_a_stopped_trainer_is_reported_and_so_is_the_standby_before_it(launch, operator) -> None:
    launch()
    before = await operator.hear(has_standby)
    (standby,) = trainers()
    os.kill(standby, signal.SIGSTOP)
    waiting = await operator.hear(lambda report: report.stopped)
    os.kill(standby, signal.SIGCONT)
    await operator.hear(lambda report: not report.stopped)
    await operator.say(Directive.TRAIN, world(1))
    await operator.hear(is_training(1))
    os.kill(standby, signal.SIGSTOP)
    training = await operator.hear(lambda report: report.stopped)

    assert before.cpu_seconds is not None
    assert (waiting.generation, training.generation) == (0, 1)


async def test_agent_of_a_container_that_was_stopped_does_not_enter_its_world_again(launch, operator) -> None:
    """The kubelet stops the containers of a pod that it keeps, if the sandbox of the pod is gone."""
    first = launch()
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    before = await operator.hear(is_training(1))
    os.kill(os.getpid(), signal.SIGTERM)
    assert await exit_code(first) == 143
    operator.reports.clear()

    launch()
    after = await operator.hear(has_standby)

    assert after.instance != before.instance
    assert (after.generation, after.phase) == (1, Phase.FAILED)
