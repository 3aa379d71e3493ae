"""A whole agent with a hot standby: a third trainer process that waits to take over."""

from pathlib import Path

import pytest

from trainingjob_api.protocol import Directive, HostReport, Phase
from trainingjob_api.world import Member, World


def world(generation: int, shadow: str = "") -> World:
    member = Member(process=0, slice=0, host=0, pod="uid-0", pod_uid="uid-0", address="127.0.0.1")
    return World(generation=generation, job_uid="job-1", coordinator="127.0.0.1:1", members=(member,), shadow=shadow)


def has_standby(report: HostReport) -> bool:
    return report.standby


def trains_beside_standby(report: HostReport) -> bool:
    return report.phase is Phase.TRAINING and report.standby


@pytest.fixture
def shadowed(variables, run_config) -> None:
    """Enable hot standby worlds of the job."""
    elastic = run_config.spec.elastic.model_copy(update={"hot_standby": True})
    spec = run_config.spec.model_copy(update={"elastic": elastic})
    config = run_config.model_copy(update={"spec": spec})
    Path(variables["TRAININGJOB_CONFIG"]).write_text(config.model_dump_json(by_alias=True))


async def test_hot_standby_takes_over_in_a_higher_generation(shadowed, launch, operator, capfdbinary) -> None:
    launch()
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    first = await operator.hear(trains_beside_standby)
    await operator.say(Directive.TRAIN, world(1), shadow=world(1, "it"))
    waiting = await operator.hear(lambda report: report.shadow == "it")

    await operator.say(Directive.TRAIN, world(2, "it"))
    after = await operator.hear(lambda report: report.generation == 2 and trains_beside_standby(report))

    assert first.shadow_port == waiting.shadow_port
    assert after.shadow_port not in (None, waiting.shadow_port)
    assert (after.failure, after.shadow) == (None, "")
    assert capfdbinary.readouterr().out.count(b"[world 2] takes over") == 1


async def test_hot_standby_that_ends_is_replaced(shadowed, launch, operator) -> None:
    launch(shadow="broken")
    await operator.hear(has_standby)
    await operator.say(Directive.TRAIN, world(1))
    before = await operator.hear(trains_beside_standby)
    await operator.say(Directive.TRAIN, world(1), shadow=world(1, "it"))

    report = await operator.hear(lambda report: report.shadow_port != before.shadow_port)

    assert (report.phase, report.failure, report.shadow, report.standby) == (Phase.TRAINING, None, "", True)
