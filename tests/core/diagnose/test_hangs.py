"""Worlds whose hosts all report and make no progress: budgets by phase, diagnostics, and diagnosis."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from tests.support.builders import make_plan
from tests.support.scenes import Scene, claim, kind, lose_node, trained
from trainingjob_api.protocol import Diagnostics, Directive, Phase, ProcessState, Progress
from trainingjob_api.status.world_status import Restarts
from trainingjob_operator.core.decide.decisions import Claim, CollectDiagnostics, EndWorld, Fail, Wait
from trainingjob_operator.core.diagnose.hangs import seconds_until_hang
from trainingjob_operator.core.reasons import Reason
from trainingjob_operator.core.report.job_events import make_directive

EXAMINING = (CollectDiagnostics, Reason.COLLECTING_DIAGNOSTICS)
TRAINING = (Wait, Reason.TRAINING)
HUNG = (Claim, (0, 1), Reason.HUNG_HOST, True)
ALL = ((0, 0), (0, 1), (1, 0), (1, 1))


def standing(seconds: float, scene: Scene | None = None, **changes: object) -> Scene:
    """Return a world that has trained and then stalled."""
    return (scene or trained()).hear_slice(0, 1, still=seconds, **changes)


def stepping(typical: float | None, step_seconds: float = 0.5) -> Progress:
    return Progress(step=10, loss=2.5, step_seconds=step_seconds, typical_seconds=typical)


def behind(typical: float) -> Progress:
    """Return the report of a host in the step after `stepping`."""
    return Progress(step=9, loss=2.5, step_seconds=0.5, typical_seconds=typical)


def evidence(entered: int = 12, **changes: object) -> Diagnostics:
    return Diagnostics(
        **{"state": ProcessState.SLEEPING, "cores": 0.0, "entered": entered, "newest": f"step {entered}", **changes}
    )


def report_states(scene: Scene, clues: dict[tuple[int, int], Diagnostics], still: float = 31.0) -> Scene:
    """Let hosts report the states of their trainers; the others have entered step 12 and wait."""
    for place in ALL:
        scene.hear(*place, still=still, evidence=clues.get(place, evidence()))
    return scene


def later(scene: Scene, seconds: float, places: Iterable[tuple[int, int]] = ALL) -> Scene:
    for place in places:
        scene.hear(*place, still=seconds)
    return scene


BUDGETS: dict[str, tuple[Callable[[], Scene], float]] = {
    "short steps: the least there is": (lambda: standing(0.0, progress=stepping(0.1)), 30.0),
    "long steps: ten of them": (lambda: standing(0.0, progress=stepping(9.0)), 90.0),
    "one host's steps are longer": (
        lambda: standing(0.0, progress=stepping(5.0)).hear(1, 1, still=0.0, progress=stepping(9.0)),
        90.0,
    ),
    "the first steps, after a world whose steps were long": (
        lambda: standing(0.0, progress=stepping(None, 2.0), scene=after_steps_of(2.0)),
        80.0,
    ),
    "the first steps, after a world whose steps were short": (lambda: standing(0.0), 30.0),
    "the first steps of the job": (lambda: standing(0.0, scene=never_stepped(), progress=None), 1800.0),
    "as the spec says": (
        lambda: standing(0.0, trained(plan=make_plan(elastic={"progressTimeout": "8s"})), progress=stepping(0.1)),
        8.0,
    ),
    "as the spec says, and longer steps": (
        lambda: standing(0.0, trained(plan=make_plan(elastic={"progressTimeout": "8s"})), progress=stepping(1.0)),
        10.0,
    ),
    "after a long silence": (
        lambda: standing(0.0, trained(plan=make_plan(elastic={"heartbeatTimeout": "40s"})), progress=stepping(0.1)),
        80.0,
    ),
    "one host saves: it may take longer than a step": (
        lambda: standing(0.0, progress=stepping(0.1)).hear(1, 0, still=0.0, phase=Phase.SAVING),
        1500.0,
    ),
    "all but one are through with a step and save: they wait for the one that is not": (
        lambda: standing(0.0, phase=Phase.SAVING, progress=stepping(0.1)).hear(
            1, 0, still=0.0, phase=Phase.TRAINING, progress=behind(0.1)
        ),
        30.0,
    ),
    "the same where they evaluate": (
        lambda: standing(0.0, phase=Phase.EVALUATING, progress=stepping(0.1)).hear(
            1, 0, still=0.0, phase=Phase.TRAINING, progress=behind(0.1)
        ),
        30.0,
    ),
    "replicas wait for each other at the end of a round": (lambda: standing(0.0, phase=Phase.SYNCHRONIZING), 3300.0),
    "all are through with a step, and one still saves it": (
        lambda: standing(0.0, progress=stepping(0.1)).hear(1, 0, still=0.0, phase=Phase.SAVING, progress=stepping(0.1)),
        1500.0,
    ),
    "one that has not finished a step here still saves the one before": (
        lambda: standing(0.0, progress=stepping(0.1)).hear(1, 0, still=0.0, phase=Phase.SAVING, progress=None),
        1500.0,
    ),
    "saves were quick so far: another kind of save need not be": (
        lambda: standing(0.0, phase=Phase.SAVING, phase_seconds={Phase.SAVING: 2.0}),
        1500.0,
    ),
    "the same, and its host tells what it writes meanwhile": (
        lambda: standing(0.0, phase=Phase.SAVING, phase_seconds={Phase.SAVING: 2.0}, moved_mebibytes=7),
        300.0,
    ),
    "one of the hosts does not tell what it writes": (
        lambda: standing(0.0, phase=Phase.SAVING, phase_seconds={Phase.SAVING: 2.0}, moved_mebibytes=7).hear(
            1, 1, still=0.0, moved_mebibytes=None
        ),
        1500.0,
    ),
    "the first save": (lambda: standing(0.0, phase=Phase.SAVING, moved_mebibytes=7), 1500.0),
    "saves were slow so far": (
        lambda: standing(0.0, phase=Phase.SAVING, phase_seconds={Phase.SAVING: 200.0}, moved_mebibytes=7),
        800.0,
    ),
    "saves were slower than anybody thought": (
        lambda: standing(0.0, phase=Phase.SAVING, phase_seconds={Phase.SAVING: 1000.0}),
        4000.0,
    ),
    "a start from scratch restored nothing: it does not tell how long a restore takes": (
        lambda: standing(0.0, phase=Phase.RESTORING, phase_seconds={Phase.RESTORING: 0.3}),
        1500.0,
    ),
    "a program was loaded in no time: to compile one may take longer": (
        lambda: standing(0.0, phase=Phase.COMPILING, phase_seconds={Phase.COMPILING: 0.4}, moved_mebibytes=7),
        1500.0,
    ),
    "one host knows how long an evaluation takes": (
        lambda: standing(0.0, phase=Phase.EVALUATING).hear(0, 1, still=0.0, phase_seconds={Phase.EVALUATING: 600.0}),
        2400.0,
    ),
    "all prepare the text": (lambda: standing(0.0, phase=Phase.PREPARING), 12 * 3600.0),
    "one still prepares what another is through with": (
        lambda: standing(0.0, phase=Phase.PREPARING).hear(1, 1, still=0.0, phase=Phase.CONNECTING),
        240.0,
    ),
    "one has not joined": (
        lambda: standing(0.0, phase=Phase.CONNECTING).hear(1, 1, still=0.0, generation=0, phase=Phase.IDLE),
        240.0,
    ),
    "somebody has left: there is a patience for that": (lambda: trained().hear(0, 0, phase=Phase.LEFT), float("inf")),
    "there is no world": (Scene, float("inf")),
}


def after_steps_of(seconds: float) -> Scene:
    scene = trained().train(step=20, progress=Progress(step=20, step_seconds=seconds))
    scene.step()
    return scene


def never_stepped() -> Scene:
    scene = Scene().place(0, 1).hear_slice(0, 1, phase=Phase.IDLE, still=1000.0)
    scene.step()
    return scene.train(step=0, progress=None)


@pytest.mark.parametrize(("scene", "want"), BUDGETS.values(), ids=BUDGETS.keys())
def test_budget(scene: Callable[[], Scene], want: float) -> None:
    now = scene()

    assert seconds_until_hang(now.plan, now.see()) == want


CASES: dict[str, tuple[Callable[[], Scene], tuple[object, ...]]] = {
    "within its budget": (lambda: standing(29.0), TRAINING),
    "one host alone comes further": (lambda: standing(31.0).hear(1, 0, still=2.0), TRAINING),
    "all stand still: they are asked": (lambda: standing(31.0), EXAMINING),
    "some have told": (
        lambda: later(report_states(standing(31.0), {}), 31.0).hear(1, 1, still=31.0, evidence=None),
        EXAMINING,
    ),
    "one never tells": (
        lambda: later(report_states(standing(31.0), {}), 33.5).hear(1, 1, still=33.5, evidence=None),
        HUNG,
    ),
    "all have told": (lambda: report_states(standing(31.0), {}), HUNG),
    "all have told, and then it goes on": (lambda: later(report_states(standing(31.0), {}), 0.5), TRAINING),
    "what stood still before this world does not count": (
        lambda: standing(31.0, scene=trained(announced=20.0)),
        TRAINING,
    ),
    "what this operator has not heard does not count": (
        lambda: standing(31.0, scene=trained(listening=12.0), age=29.0),
        TRAINING,
    ),
    "a slice is silent: that is another matter": (
        lambda: standing(31.0).silence(1),
        (Claim, (0,), Reason.HEARTBEAT_LOST, False),
    ),
    "a node is not ready, its host reports: it hangs all the same": (
        lambda: lose_node(standing(31.0), 1, 0),
        EXAMINING,
    ),
    "asked to leave, and it does not": (lambda: standing(31.0).delete_pod(1, 0), EXAMINING),
    "too few are left for another world": (
        lambda: lose_node(report_states(standing(31.0, Scene(plan=make_plan(2, 2)).form(0, 1)), {}), 1, 0),
        (EndWorld, Reason.WAITING_FOR_SLICES),
    ),
}


@pytest.mark.parametrize(("scene", "want"), CASES.values(), ids=CASES.keys())
def test_stalled_world_hangs_after_its_budget(scene: Callable[[], Scene], want: tuple[object, ...]) -> None:
    assert kind(scene().decide()) == want


def test_hanging_host_is_named_with_its_stack() -> None:
    behind = evidence(11, stack="Thread 0x1 (most recent call first):")

    end = claim(report_states(standing(31.0), {(1, 0): behind})).end

    assert end
    assert (end.is_counted, end.is_planned, end.seconds_ago) == (True, False, 31.0)
    cause = end.cause
    assert (cause.reason, cause.slice, cause.host, cause.node, cause.step) == ("HungHost", 1, 0, "node-1-0", 11)
    assert cause.log == "Thread 0x1 (most recent call first):"
    assert cause.message == (
        "host 0 of slice 1 hangs: no host of the world made progress for 31 s, and other hosts have entered step 12, "
        "but it has not. Stacks of all hosts: /shared/runs/demo/stacks"
    )


def test_no_host_is_named_if_the_states_are_alike() -> None:
    end = claim(report_states(standing(31.0), {})).end

    assert end
    assert (end.cause.reason, end.cause.slice, end.cause.host, end.cause.node) == ("HungHost", None, None, "")
    assert "The host that blocks the others is unknown: 4 of 4 hosts sent diagnostics" in end.cause.message


def test_a_host_that_never_joined_is_behind_all_others() -> None:
    scene = standing(241.0, phase=Phase.CONNECTING, evidence=evidence(3), progress=None)
    scene.hear(1, 1, still=241.0, generation=0, phase=Phase.IDLE, evidence=None)

    end = claim(scene).end

    assert end
    assert (end.cause.slice, end.cause.host, end.cause.step) == (1, 1, None)


STUCK: dict[str, tuple[Phase, float]] = {
    "while it connects": (Phase.CONNECTING, 240.0),
    "while it restores": (Phase.RESTORING, 1500.0),
    "while it compiles": (Phase.COMPILING, 1500.0),
    "at a barrier of a save": (Phase.SAVING, 1500.0),
    "in an evaluation": (Phase.EVALUATING, 1500.0),
}


@pytest.mark.parametrize(("phase", "budget"), STUCK.values(), ids=STUCK.keys())
def test_stalled_host_delays_the_others_at_most_by_the_budget(phase: Phase, budget: float) -> None:
    def waited(seconds: float) -> Scene:
        there = evidence(13, newest="the barrier `ready`")
        scene = standing(seconds, trained(announced=3600.0, listening=3600.0), phase=phase, evidence=there)
        return scene.hear(1, 0, still=seconds, evidence=evidence(12, newest="the barrier before"))

    assert isinstance(waited(budget - 1.0).decide(), Wait)

    found = claim(waited(budget + 1.0))

    assert found.end
    assert (found.world.slices, found.end.is_counted) == ((0, 1), True)
    assert (found.end.cause.reason, found.end.cause.slice, found.end.cause.host) == ("HungHost", 1, 0)
    assert "other hosts have entered the barrier `ready`, but it has not" in found.end.cause.message


def hang_again(scene: Scene, phase: Phase, still: float, evidence: Diagnostics) -> Scene:
    """Let the world of a scene stall in a phase, and record its end."""
    scene.train(step=0, phase=phase, still=still, progress=None, evidence=evidence)
    assert isinstance(scene.step(60.0), (Claim, EndWorld)), scene.decide()
    while scene.status.world and scene.see().world is None:
        scene.step(60.0)
    return scene


def test_a_budget_that_ended_a_world_is_doubled_until_a_step_is_saved() -> None:
    scene = trained(announced=9000.0, listening=9000.0)
    left = []
    for budget in (1500.0, 3000.0):
        hang_again(scene, Phase.RESTORING, budget, evidence())
        scene.train(step=0, phase=Phase.RESTORING, still=0.0, progress=None, evidence=None)
        left.append(seconds_until_hang(scene.plan, scene.see()))
        scene.train(step=0, phase=Phase.COMPILING, still=0.0, progress=None)
        left.append(seconds_until_hang(scene.plan, scene.see()))
    scene.train(step=12, committed=12, still=0.0)
    scene.train(step=12, phase=Phase.RESTORING, still=0.0, progress=None)
    left.append(seconds_until_hang(scene.plan, scene.see()))

    assert left == [3000.0, 1500.0, 6000.0, 1500.0, 1500.0]
    assert [one.cause.phase for one in scene.status.attempts if one.cause] == ["restoring", "restoring"]


def test_a_step_that_took_too_long_is_given_twice_the_time() -> None:
    scene = report_states(standing(31.0), {})
    scene.step()
    scene.train(step=11, restored=10, still=0.0, evidence=None)

    assert seconds_until_hang(scene.plan, scene.see()) == 60.0
    assert scene.status.attempts[0].cause
    assert scene.status.attempts[0].cause.phase == "training"


def test_hangs_without_a_saved_step_between_them_end_the_job() -> None:
    scene = report_states(standing(31.0, trained(plan=make_plan(elastic={"maxRestarts": 0}))), {})
    scene.status = scene.status.model_copy(update={"restarts": Restarts(total=5, since_commit=5)})

    decision = scene.decide()

    assert isinstance(decision, Fail)
    assert decision.reason == Reason.NO_STEP_SAVED
    assert "Last failure, on an unknown host: no host of the world made progress for 31 s" in decision.message


def test_diagnostics_are_requested_once_and_reported() -> None:
    scene = standing(31.0)
    seen, decision = scene.see(), scene.decide()

    bulletin = make_directive(scene.plan, seen, decision, scene.status)
    first = scene.happenings()
    scene.step()
    again = scene.happenings()

    assert (bulletin.directive, bulletin.collects_diagnostics) == (Directive.TRAIN, True)
    assert [(one.reason, one.is_warning) for one in first] == [("CollectingDiagnostics", False)]
    assert again == ()
    running = next(one for one in scene.status.conditions if one.type == "Running")
    assert (running.status, running.reason) == ("True", "CollectingDiagnostics")
    assert running.message == "no host has made progress for 31 s; collecting diagnostics"
    assert scene.status.phase == "Running"


def test_stalled_time_is_no_training_time() -> None:
    scene = trained()
    scene.step(60.0)
    trained_before = scene.status.goodput.seconds["training"]
    report_states(scene, {}, still=31.0)

    scene.step(31.0)

    assert (scene.status.restarts.counted, scene.status.restarts.since_commit) == (0, 1)
    assert scene.status.goodput.seconds["detecting"] == 31.0
    assert scene.status.goodput.seconds["training"] == pytest.approx(trained_before)


def test_a_new_world_begins_with_what_steps_took_before() -> None:
    scene = after_steps_of(2.0)
    report_states(scene, {}, still=500.0)
    scene.step()
    scene.train(step=20, restored=18, progress=None)
    scene.news = {uid: replace(news, stalled_for=0.0) for uid, news in scene.news.items()}
    scene.step()

    assert scene.status.progress
    assert (scene.status.progress.step, scene.status.progress.step_seconds) == (18, 2.0)
    assert seconds_until_hang(scene.plan, scene.see()) == 2 * 80.0  # the one before hung
