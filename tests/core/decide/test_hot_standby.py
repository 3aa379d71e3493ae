"""Hot standby worlds: which the operator requests, how they are named, and when one takes over."""

from collections.abc import Callable

import pytest

from tests.support.builders import make_plan
from tests.support.scenes import Scene, claim, kind
from trainingjob_api.protocol import Directive, Phase
from trainingjob_api.world import World
from trainingjob_operator.core.decide.decisions import Claim
from trainingjob_operator.core.decide.hot_standby import find_ready_standby_worlds, plan_hot_standby_worlds
from trainingjob_operator.core.report.job_events import make_directive

ELASTIC = {"hotStandby": True, "growCooldown": "1h"}


def with_ports(*sizes: int, allowed: tuple[int, ...] = (), wanted: bool = True) -> Scene:
    """Return a job whose largest world trains; each host has a port for a hot standby world."""
    plan = make_plan(*sizes, allowed=allowed, elastic={**ELASTIC, "hotStandby": wanted})
    scene = Scene(plan=plan).form(*range(plan.allowed_sizes[-1]))
    for number in range(plan.allowed_sizes[-1]):
        for host in range(2):
            scene.hear(number, host, shadow_port=6000 + 10 * number + host)
    return scene


def planned(scene: Scene) -> tuple[World, ...]:
    return plan_hot_standby_worlds(scene.plan, scene.see())


def waiting(scene: Scene, *slices: int) -> Scene:
    """Let the hosts of slices wait in the requested hot standby worlds."""
    for shadow in planned(scene):
        for member in shadow.members:
            if member.slice in slices:
                scene.hear(member.slice, member.host, shadow=shadow.shadow)
    return scene


def lose(scene: Scene, *slices: int) -> Scene:
    for number in slices:
        for host in range(2):
            del scene.pods[number, host]
    return scene


GROUPS: dict[str, tuple[Callable[[], Scene], list[tuple[int, ...]]]] = {
    "two slices: each alone": (lambda: with_ports(1, 2), [(0,), (1,)]),
    "three: the last has none": (lambda: with_ports(1, 3), [(0, 1)]),
    "four, next to two: halves": (lambda: with_ports(1, 4, allowed=(1, 2, 4)), [(0, 1), (2, 3)]),
    "nothing smaller is allowed": (lambda: with_ports(2, 2), []),
    "not asked for": (lambda: with_ports(1, 2, wanted=False), []),
    "before the first world": (lambda: Scene(plan=make_plan(elastic=ELASTIC)), []),
    "before the first step": (lambda: with_ports(1, 2).train(step=10, restored=10), []),
    "a host that has no part in it": (lambda: with_ports(1, 2).hear(0, 1, shadow_port=None), [(1,)]),
    "a host whose child is in another world": (lambda: with_ports(1, 2).hear(1, 1, generation=0), [(0,)]),
}


@pytest.mark.parametrize(("scene", "want"), GROUPS.values(), ids=GROUPS.keys())
def test_groups(scene: Callable[[], Scene], want: list[tuple[int, ...]]) -> None:
    assert [shadow.slices for shadow in planned(scene())] == want


def test_hot_standby_world_equals_the_next_world_except_for_its_generation() -> None:
    scene = waiting(with_ports(1, 2), 0, 1)
    _, shadow = planned(scene)

    formed = claim(lose(scene, 0)).world

    assert shadow.generation == 1
    assert [member.process for member in shadow.members] == [0, 1]
    assert shadow.coordinator == f"{shadow.members[0].address}:6010"
    assert formed == shadow.model_copy(
        update={"generation": 2, "lineage": formed.lineage, "committed": formed.committed}
    )


RENAMED: dict[str, Callable[[Scene], object]] = {
    "a process of it ended": lambda scene: scene.hear(0, 1, shadow_port=7000),
    "an agent of it was restarted": lambda scene: scene.hear(0, 1, instance="b"),
    "an edit": lambda scene: setattr(
        scene, "plan", make_plan(elastic=ELASTIC, training={**scene.plan.spec.training.model_dump(), "steps": 777})
    ),
}
NOT_RENAMED: dict[str, Callable[[Scene], object]] = {
    "a step, and a save": lambda scene: scene.train(step=30, committed=20),
    "another host's port": lambda scene: scene.hear(1, 0, shadow_port=7000),
    "a port for other things": lambda scene: scene.hear(0, 0, port=7000),
}


@pytest.mark.parametrize("change", RENAMED.values(), ids=RENAMED.keys())
def test_different_hot_standby_worlds_have_different_names(change: Callable[[Scene], object]) -> None:
    scene = with_ports(1, 2)
    before = planned(scene)[0]
    change(scene)
    assert planned(scene)[0].shadow != before.shadow


@pytest.mark.parametrize("change", NOT_RENAMED.values(), ids=NOT_RENAMED.keys())
def test_unchanged_hot_standby_world_keeps_its_name(change: Callable[[Scene], object]) -> None:
    scene = with_ports(1, 2)
    before = planned(scene)[0]
    change(scene)
    assert planned(scene)[0] == before


TAKEN_OVER: dict[str, tuple[Callable[[], Scene], tuple[int, ...], bool]] = {
    "the first slice is lost": (lambda: lose(waiting(with_ports(1, 2), 0, 1), 0), (1,), True),
    "one host does not wait yet": (
        lambda: lose(waiting(with_ports(1, 2), 0, 1).hear(0, 1, shadow=""), 1),
        (0,),
        False,
    ),
    "one host waits in an older one": (
        lambda: lose(waiting(with_ports(1, 2), 0, 1).hear(0, 1, shadow="old"), 1),
        (0,),
        False,
    ),
    "the half that is whole goes first": (
        lambda: lose(waiting(with_ports(1, 4, allowed=(1, 2, 4)), 2, 3), 0),
        (2, 3),
        True,
    ),
    "of two halves none is whole": (
        lambda: lose(waiting(with_ports(1, 4, allowed=(1, 2, 4)), 0, 1, 2, 3), 0, 3),
        (1, 2),
        False,
    ),
    "the one without a shadow is lost": (lambda: lose(waiting(with_ports(1, 3), 0, 1), 2), (0, 1), True),
    "another than that is lost": (lambda: lose(waiting(with_ports(1, 3), 0, 1), 0), (1, 2), False),
    "so many are lost that the size is another": (lambda: lose(waiting(with_ports(1, 3), 0, 1), 0, 2), (1,), False),
    "all left for a smaller world": (
        lambda: lose(waiting(with_ports(1, 2), 0, 1).hear_slice(0, 1, phase=Phase.LEFT), 1),
        (0,),
        True,
    ),
}


@pytest.mark.parametrize(("scene", "slices", "by_shadow"), TAKEN_OVER.values(), ids=TAKEN_OVER.keys())
def test_ready_hot_standby_takes_over(scene: Callable[[], Scene], slices: tuple[int, ...], *, by_shadow: bool) -> None:
    at = scene()
    names = {shadow.shadow for shadow in find_ready_standby_worlds(at.plan, at.see())}
    world = claim(at).world

    assert world.slices == slices
    assert (world.shadow in names) == by_shadow
    assert bool(world.shadow) == by_shadow


def test_crash_restarts_on_all_slices_without_hot_standby() -> None:
    scene = waiting(with_ports(1, 2), 0, 1).hear(0, 1, phase=Phase.FAILED)

    assert kind(scene.decide())[:2] == (Claim, (0, 1))
    assert claim(scene).world.shadow == ""


def test_status_records_that_a_hot_standby_took_over() -> None:
    scene = lose(waiting(with_ports(1, 2), 0, 1), 1)
    formed = claim(scene).world
    scene.step()

    known = scene.see().world

    assert known
    assert known.shadow == formed.shadow != ""
    assert [attempt.shadow for attempt in scene.status.attempts] == [False, True]


def test_hosts_get_the_hot_standby_world_while_their_world_trains() -> None:
    scene = with_ports(1, 2)
    bulletin = make_directive(scene.plan, scene.see(), scene.decide(), scene.status)
    assert bulletin.directive is Directive.TRAIN
    assert bulletin.standby_worlds == planned(scene)

    lose(scene, 1)
    decision = scene.decide()
    assert make_directive(scene.plan, scene.see(), decision, scene.status).standby_worlds == ()
