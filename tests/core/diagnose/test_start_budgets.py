"""Startup budgets: each state of a member before the first step has one, alone and beside each other state."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement
from math import inf
from typing import Any

import pytest

from tests.core.diagnose.test_hangs import never_stepped, standing, stepping
from tests.support.builders import failure, make_plan
from tests.support.scenes import Scene, trained
from trainingjob_api.protocol import STARTUP_PHASES, Diagnostics, FailureReason, Phase, ProcessState
from trainingjob_operator.core.decide.decisions import (
    Claim,
    CollectDiagnostics,
    Decision,
    DrainWorld,
    EndWorld,
    Fail,
    Succeed,
    Wait,
)
from trainingjob_operator.core.diagnose.hangs import ORDER, seconds_until_hang
from trainingjob_operator.core.reasons import Reason

WINDOW = 5.0
EXAMINATION = 3.0
PEER = failure(reason=FailureReason.PEER, message="another host of the world was lost")
ENDED = (Claim, EndWorld, Fail, Succeed)


@dataclass(frozen=True)
class State:
    """What a member reports before the first step, and after how many seconds it holds up its world no longer."""

    budget: float
    changes: dict[str, Any] = field(default_factory=dict)
    is_of_world: bool = True
    is_heard: bool = True


def at(phase: Phase, budget: float, **changes: Any) -> State:
    return State(budget, {"phase": phase, **changes})


def measured(phase: Phase, budget: float, **changes: Any) -> State:
    return at(phase, budget, cpu_seconds=4, moved_mebibytes=7, **changes)


def before(budget: float = 240.0, **changes: Any) -> State:
    return State(budget, {"cpu_seconds": 4, **changes}, is_of_world=False)


STATES: dict[str, State] = {
    "prepares": measured(Phase.PREPARING, 300.0),
    "connects": measured(Phase.CONNECTING, 240.0),
    "restores": measured(Phase.RESTORING, 300.0),
    "compiles": measured(Phase.COMPILING, 300.0),
    "is in the first step": measured(Phase.TRAINING, 1800.0),
    "evaluates what it restored": measured(Phase.EVALUATING, 1500.0),
    "saves what it restored": measured(Phase.SAVING, 1500.0),
    "prepares, by an older agent": at(Phase.PREPARING, 12 * 3600.0),
    "connects, by an older agent": at(Phase.CONNECTING, 240.0),
    "restores, by an older agent": at(Phase.RESTORING, 1500.0),
    "compiles, by an older agent": at(Phase.COMPILING, 1500.0),
    "is stopped while it prepares": measured(Phase.PREPARING, 30.0, stopped=True),
    "is stopped while it connects": measured(Phase.CONNECTING, 30.0, stopped=True),
    "is stopped while it restores": measured(Phase.RESTORING, 30.0, stopped=True),
    "is stopped while it compiles": measured(Phase.COMPILING, 30.0, stopped=True),
    "is stopped in the first step": measured(Phase.TRAINING, 30.0, stopped=True),
    "was in no world yet": before(generation=0, phase=Phase.IDLE),
    "was killed in the world before, and has no standby": before(phase=Phase.IDLE, standby=False),
    "failed in the world before": before(phase=Phase.FAILED, failure=PEER),
    "left the world before": before(phase=Phase.LEFT),
    "still reports that it trains in the world before": before(phase=Phase.TRAINING),
    "has a stopped standby": before(30.0, generation=0, phase=Phase.IDLE, stopped=True),
    "failed after another": at(Phase.FAILED, WINDOW, failure=PEER),
    "has left": at(Phase.LEFT, 60.0),
    "fell silent in this world": State(4 * WINDOW, {"phase": Phase.CONNECTING}, is_heard=False),
    "fell silent before this world": State(
        4 * WINDOW, {"generation": 0, "phase": Phase.IDLE}, is_of_world=False, is_heard=False
    ),
}
ALONE = [name for name, state in STATES.items() if state.is_heard and name != "has left"]
"""States that hold up a world in which all members are alike."""
PAIRS = list(combinations_with_replacement(STATES, 2))


def wait_in(seconds: float, *states: State, listening: float = inf) -> Decision:
    """Return the decision for a second world whose members have been in these states for a while, in turn."""
    scene = Scene(
        plan=make_plan(2, 2, elastic={"heartbeatTimeout": f"{WINDOW:.0f}s"}), listening=listening, announced=seconds
    )
    scene.place(0, 1).hear_slice(0, 1, phase=Phase.IDLE, still=1000.0)
    scene.step()
    assert scene.status.world
    world = scene.status.world.model_copy(update={"generation": 2})
    scene.status = scene.status.model_copy(update={"world": world})
    for number, place in enumerate(scene.pods):
        state = states[number % len(states)]
        changes = {"generation": 2 if state.is_of_world else 1, **state.changes}
        scene.hear(*place, age=0.2 if state.is_heard else seconds, still=seconds, **changes)
    scene.news = {uid: replace(news, idle_for=seconds) for uid, news in scene.news.items()}
    return scene.decide()


def idling(idle: float, busy: int, scene: Scene) -> Scene:
    """Let only the process of one host in slice 0 have used CPU time for a while."""
    uid = scene.pods[0, busy]["metadata"]["uid"]
    scene.news = {one: replace(news, idle_for=0.0 if one == uid else idle) for one, news in scene.news.items()}
    return scene


def stopping(phase: Phase, still: float = 0.0, scene: Scene | None = None, **changes: object) -> Scene:
    """Return a world that is in a phase, and of which the process of one host is stopped."""
    changes = {"progress": None, "restored": None, **changes}
    scene = standing(still, scene, phase=phase, **changes)
    return scene.hear(1, 1, still=still, stopped=True)


BUDGETS: dict[str, tuple[Callable[[], Scene], float]] = {
    "none has joined": (lambda: standing(0.0, generation=0, phase=Phase.IDLE), 240.0),
    "all prepare the text, and none uses CPU time": (
        lambda: standing(0.0, phase=Phase.PREPARING, cpu_seconds=9, moved_mebibytes=7),
        300.0,
    ),
    "the first restore, and none uses CPU time": (
        lambda: standing(0.0, phase=Phase.RESTORING, cpu_seconds=9, moved_mebibytes=7),
        300.0,
    ),
    "all compile, and none uses CPU time": (
        lambda: standing(0.0, phase=Phase.COMPILING, cpu_seconds=9, moved_mebibytes=7),
        300.0,
    ),
    "all compile, and one uses CPU time": (
        lambda: idling(299.0, 1, standing(299.0, phase=Phase.COMPILING, cpu_seconds=9, moved_mebibytes=7)),
        300.0,
    ),
    "all compile, and one does not report its CPU time": (
        lambda: standing(0.0, phase=Phase.COMPILING, cpu_seconds=9, moved_mebibytes=7).hear(
            1, 1, still=0.0, cpu_seconds=None
        ),
        1500.0,
    ),
    "a restore that took long before, and none uses CPU time": (
        lambda: standing(
            0.0, phase=Phase.RESTORING, cpu_seconds=9, moved_mebibytes=7, phase_seconds={Phase.RESTORING: 200.0}
        ),
        800.0,
    ),
    "a first step on devices uses no CPU time": (
        lambda: standing(0.0, scene=never_stepped(), progress=None, cpu_seconds=9, moved_mebibytes=7),
        1800.0,
    ),
    "one is stopped while it prepares": (lambda: stopping(Phase.PREPARING), 30.0),
    "one is stopped while it connects": (lambda: stopping(Phase.CONNECTING), 30.0),
    "one is stopped while it restores": (lambda: stopping(Phase.RESTORING), 30.0),
    "one is stopped while it compiles": (lambda: stopping(Phase.COMPILING), 30.0),
    "one is stopped in the first step": (lambda: stopping(Phase.TRAINING, scene=never_stepped()), 30.0),
    "one is stopped in the first step after a restore": (
        lambda: stopping(Phase.TRAINING, progress=stepping(None, 9.0), restored=10),
        30.0,
    ),
    "one is stopped after a step": (lambda: stopping(Phase.TRAINING, progress=stepping(9.0), restored=0), 30.0),
    "one is stopped in a save": (lambda: stopping(Phase.SAVING, progress=stepping(9.0), restored=0), 30.0),
    "one is stopped in an evaluation": (lambda: stopping(Phase.EVALUATING, progress=stepping(9.0), restored=0), 30.0),
    "one is stopped while the world ends": (
        lambda: stopping(Phase.SYNCHRONIZING, progress=stepping(9.0), restored=0),
        30.0,
    ),
    "one is stopped, and the others wait in a save": (
        lambda: stopping(Phase.TRAINING, progress=stepping(9.0), restored=0).hear_slice(
            0, phase=Phase.SAVING, still=0.0
        ),
        30.0,
    ),
    "one is stopped before it has joined": (lambda: stopping(Phase.IDLE, generation=0), 30.0),
    "one is stopped, as the spec says": (
        lambda: stopping(Phase.COMPILING, scene=trained(plan=make_plan(elastic={"progressTimeout": "8s"}))),
        8.0,
    ),
    "one is stopped, and the others come further": (
        lambda: stopping(Phase.COMPILING, still=20.0).hear_slice(0, still=0.0, phase=Phase.RESTORING),
        10.0,
    ),
    "one is stopped, and another is not heard of": (
        lambda: stopping(Phase.COMPILING, still=20.0).hear_slice(0, still=0.0).silence(0, age=9.0),
        10.0,
    ),
}


@pytest.mark.parametrize(("scene", "want"), BUDGETS.values(), ids=BUDGETS.keys())
def test_budget_before_the_first_step_or_of_a_stopped_process(scene: Callable[[], Scene], want: float) -> None:
    now = scene()

    assert seconds_until_hang(now.plan, now.see()) == want


@pytest.mark.parametrize("name", ALONE)
def test_a_member_in_each_state_holds_up_its_world_no_longer_than_its_budget(name: str) -> None:
    state = STATES[name]

    assert not isinstance(wait_in(state.budget - 1.0, state), ENDED)
    assert isinstance(wait_in(state.budget + EXAMINATION + 1.0, state), ENDED)


@pytest.mark.parametrize("name", ALONE)
def test_rare_reports_do_not_extend_a_budget(name: str) -> None:
    state = STATES[name]

    assert isinstance(wait_in(state.budget + EXAMINATION + 1.0, state, listening=10.0), ENDED)


@pytest.mark.parametrize("pair", PAIRS, ids=" - ".join)
def test_a_world_ends_however_its_members_wait_for_each_other(pair: tuple[str, str]) -> None:
    states = tuple(STATES[name] for name in pair)
    budget = max(state.budget for state in states)

    decision = wait_in(budget + EXAMINATION + 1.0, *states)

    if any(state.is_heard for state in states):
        assert isinstance(decision, ENDED), decision
        if isinstance(decision, Claim | EndWorld) and decision.end and decision.end.cause.reason == Reason.HUNG_HOST:
            assert decision.end.cause.host is not None or "unknown" in decision.end.cause.message
    else:  # then it is the operator that hears nothing
        assert isinstance(decision, Wait)


def test_each_phase_before_the_first_step_has_its_place_in_the_order() -> None:
    assert frozenset(ORDER) == STARTUP_PHASES
    assert {state.changes["phase"] for state in STATES.values() if state.is_of_world} >= STARTUP_PHASES


def exam(state: ProcessState) -> Diagnostics:
    return Diagnostics(state=state, cores=0.0, entered=3, newest="the barrier `ready`")


STOPPED, WAITS = exam(ProcessState.STOPPED), exam(ProcessState.SLEEPING)
EXAMINED: dict[str, tuple[float, dict[tuple[int, int], Diagnostics], bool, tuple[int, int] | None]] = {
    "nobody has told": (31.0, {}, False, None),
    "all but the stopped one have told": (31.0, {(0, 0): WAITS, (0, 1): WAITS, (1, 0): WAITS}, False, None),
    "all have told": (31.0, dict.fromkeys(((0, 0), (0, 1), (1, 0)), WAITS) | {(1, 1): STOPPED}, True, (1, 1)),
    "nobody has told in time": (33.5, {}, True, (1, 1)),
    "two are stopped": (
        31.0,
        dict.fromkeys(((0, 0), (0, 1)), WAITS) | dict.fromkeys(((1, 0), (1, 1)), STOPPED),
        True,
        None,
    ),
}


@pytest.mark.parametrize(("still", "clues", "is_over", "named"), EXAMINED.values(), ids=EXAMINED.keys())
def test_diagnostics_are_collected_once_more_before_the_world_ends(
    still: float, clues: dict[tuple[int, int], Diagnostics], is_over: bool, named: tuple[int, int] | None
) -> None:
    scene = stopping(Phase.CONNECTING, still=still)
    for place, clue in clues.items():
        scene.hear(*place, still=still, evidence=clue)

    decision = scene.decide()

    if not is_over:
        assert isinstance(decision, CollectDiagnostics)
        assert (
            decision.message == "the world has waited 31 s for a stopped process; collecting diagnostics of all hosts"
        )
        return
    assert isinstance(decision, Claim)
    assert decision.end
    cause = decision.end.cause
    assert (cause.reason, cause.phase) == (Reason.HUNG_HOST, Phase.CONNECTING)
    assert (cause.slice, cause.host) == (named or (None, None))
    assert f"the world has waited {still:.0f} s for a stopped process" in cause.message


def test_a_host_with_a_stopped_standby_is_named_without_a_look() -> None:
    decision = stopping(Phase.IDLE, still=31.0, generation=0).decide()

    assert isinstance(decision, Claim)
    assert decision.end
    assert (decision.end.cause.slice, decision.end.cause.host) == (1, 1)
    assert "its process is stopped" in decision.end.cause.message


def test_the_one_host_in_an_earlier_phase_is_named() -> None:
    scene = standing(301.0, phase=Phase.COMPILING, evidence=WAITS, cpu_seconds=9, moved_mebibytes=7, progress=None)
    scene.hear(1, 0, still=301.0, phase=Phase.RESTORING)
    scene.news = {uid: replace(news, idle_for=news.stalled_for) for uid, news in scene.news.items()}

    decision = scene.decide()

    assert isinstance(decision, Claim)
    assert decision.end
    assert (decision.end.cause.slice, decision.end.cause.host) == (1, 0)
    assert "all other hosts are in a later phase of the startup" in decision.end.cause.message


@pytest.mark.parametrize(("still", "want"), [(29.0, DrainWorld), (31.0, EndWorld)])
def test_a_suspended_job_waits_for_a_stopped_process_no_longer_either(still: float, want: type) -> None:
    scene = stopping(Phase.COMPILING, still=still)
    scene.plan = make_plan(suspend=True)

    decision = scene.decide()

    assert isinstance(decision, want)
    if isinstance(decision, EndWorld):
        assert decision.message.startswith("suspended without a save: a process was stopped. ")
