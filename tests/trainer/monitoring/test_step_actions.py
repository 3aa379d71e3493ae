"""The decision after a step, as a table of situations and as invariants; `test_loop.py` holds the order of actions."""

from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainingjob_trainer.monitoring.step_actions import Due, Leave, StepActions, step_actions
from trainingjob_trainer.state import Signal

LAST = 9
NONE, EXIT, SAVE, RESCALE = Signal.NONE, Signal.EXIT, Signal.SAVE, Signal.RESCALE


def due(*names: str, last_step: int = LAST) -> Due:
    return replace(Due(last_step), **dict.fromkeys(names, True))


def describe(actions: StepActions) -> str:
    evaluate = "evaluate" if actions.is_interruptible else "evaluate to the end"
    shown = {
        "report": actions.report,
        "compare": actions.compare,
        "snapshot": actions.snapshot,
        evaluate: actions.evaluate,
        "save": actions.save,
        f"leave {actions.leave.value}": actions.leave is not Leave.NO,
        "owe the evaluation": actions.evaluation_missing,
    }
    return ", ".join(name for name, is_on in shown.items() if is_on)


LEAVE_SAVED = "report, compare, snapshot, save, leave with a checkpoint"
LEAVE_HELD = "report, compare, snapshot, leave with a snapshot"
KEEP_TRAINING = "report"
SITUATIONS: dict[str, tuple[int, Signal, Due, str]] = {
    "nothing is due: the device never waits for the host": (1, NONE, due(), ""),
    "the last step": (LAST, NONE, due(), "report, compare, save"),
    "a snapshot is due": (2, NONE, due("snapshot"), "report, compare, snapshot"),
    "an evaluation is due": (2, NONE, due("evaluation"), "report, evaluate"),
    "a comparison is due": (3, NONE, due("comparison"), "report, compare"),
    "a save is due": (2, NONE, due("save"), "report, compare, save"),
    "everything is due": (
        2,
        NONE,
        due("save", "snapshot", "evaluation", "comparison"),
        "report, compare, snapshot, evaluate, save",
    ),
    "snapshots cost too much": (1, Signal.STRETCH_SNAPSHOTS, due(), "report"),
    "a non-finite gradient was injected": (1, Signal.INJECT_NAN, due(), "report"),
    "a save is requested": (3, SAVE, due(), "report, compare, save"),
    "a save is requested while one is due": (2, SAVE, due("save"), "report, compare, save"),
    "saves fail": (2, NONE, due("save", "saves_fail"), "report, compare, save"),
    "saves fail at the last step": (LAST, NONE, due("saves_fail"), "report, compare, save"),
    "exit": (2, EXIT, due(), LEAVE_SAVED),
    "exit, while an evaluation is due": (2, EXIT, due("evaluation"), f"{LEAVE_SAVED}, owe the evaluation"),
    "exit, while a save is due": (2, EXIT, due("save"), LEAVE_SAVED),
    "exit at the last step": (LAST, EXIT, due(), LEAVE_SAVED),
    "exit at the last step, which is evaluated": (LAST, EXIT, due("evaluation"), f"{LEAVE_SAVED}, owe the evaluation"),
    "exit, while saves fail": (3, EXIT, due("saves_fail"), KEEP_TRAINING),
    "exit, while saves fail and one is due": (4, EXIT, due("save", "saves_fail"), LEAVE_SAVED),
    "exit, while saves fail and one is requested": (3, EXIT | SAVE, due("saves_fail"), LEAVE_SAVED),
    "exit, while saves fail and an evaluation is due": (
        3,
        EXIT,
        due("evaluation", "saves_fail"),
        "report, evaluate to the end",
    ),
    "rescale": (2, RESCALE, due(), LEAVE_HELD),
    "rescale, while a save is due": (
        2,
        RESCALE,
        due("save"),
        "report, compare, snapshot, save, leave with a snapshot",
    ),
    "rescale, while an evaluation is due: no process is killed soon": (
        2,
        RESCALE,
        due("evaluation"),
        "report, compare, snapshot, evaluate, leave with a snapshot",
    ),
    "rescale, while another process exits": (2, RESCALE | EXIT, due(), LEAVE_SAVED),
    "rescale at the last step": (LAST, RESCALE, due(), "report, compare, snapshot, save, leave with a snapshot"),
    "rescale, while saves fail": (3, RESCALE, due("saves_fail"), KEEP_TRAINING),
    "rescale, while saves fail and one is due": (
        4,
        RESCALE,
        due("save", "saves_fail"),
        "report, compare, snapshot, save, leave with a snapshot",
    ),
}
INTERRUPTIONS: dict[str, tuple[int, Signal, Due, str]] = {
    "an evaluation alone": (2, NONE, due("evaluation"), LEAVE_SAVED),
    "a step with a snapshot is not copied again": (
        2,
        NONE,
        due("evaluation", "snapshot"),
        "report, save, leave with a checkpoint",
    ),
    "a compared step is not compared again": (
        2,
        NONE,
        due("evaluation", "comparison"),
        "report, snapshot, save, leave with a checkpoint",
    ),
    "a world that was to leave with a snapshot": (
        2,
        RESCALE,
        due("evaluation"),
        "report, save, leave with a checkpoint",
    ),
    "the last step": (LAST, NONE, due("evaluation"), "report, snapshot, save, leave with a checkpoint"),
}


@pytest.mark.parametrize(("step", "signals", "after", "want"), SITUATIONS.values(), ids=SITUATIONS.keys())
def test_actions_after_a_step(step: int, signals: Signal, after: Due, want: str) -> None:
    assert describe(step_actions(step, signals, after)) == want


@pytest.mark.parametrize(("step", "signals", "after", "want"), INTERRUPTIONS.values(), ids=INTERRUPTIONS.keys())
def test_actions_after_an_interrupted_evaluation(step: int, signals: Signal, after: Due, want: str) -> None:
    actions = step_actions(step, signals, after)

    assert actions.is_interruptible
    assert describe(actions.interrupt_evaluation()) == f"{want}, owe the evaluation"


some_signals = st.sets(st.sampled_from(Signal)).map(lambda them: reduce(Signal.__or__, them, NONE))
some_dues = st.builds(Due, st.just(LAST), st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans())
some_steps = st.integers(1, LAST)


@given(some_steps, some_signals, some_dues)
def test_a_step_without_a_report_has_no_actions(step: int, signals: Signal, after: Due) -> None:
    actions = step_actions(step, signals, after)

    assert actions.report or actions == StepActions()


@given(some_steps, some_signals, some_signals, some_dues)
def test_more_signals_never_cancel_a_report_or_a_save(step: int, before: Signal, more: Signal, after: Due) -> None:
    first, second = step_actions(step, before, after), step_actions(step, before | more, after)

    assert second.report >= first.report
    assert second.save >= first.save
    assert second.snapshot >= first.snapshot
    assert second.compare >= first.compare


@given(some_signals, some_dues)
def test_the_last_step_is_always_saved(signals: Signal, after: Due) -> None:
    assert step_actions(LAST, signals, after).save


@given(some_steps, some_signals, some_dues)
def test_replicas_are_compared_before_a_step_is_kept(step: int, signals: Signal, after: Due) -> None:
    actions = step_actions(step, signals, after)

    assert actions.compare or not (actions.save or actions.snapshot)


@given(some_steps, some_signals, some_dues)
def test_draining_world_keeps_the_step(step: int, signals: Signal, after: Due) -> None:
    actions = step_actions(step, signals, after)

    assert actions.snapshot or actions.leave is Leave.NO
    assert actions.save or actions.leave is not Leave.WITH_CHECKPOINT
    assert actions.leave is Leave.NO or signals & (EXIT | RESCALE)


@given(some_steps, some_signals, some_dues)
def test_nothing_is_evaluated_before_a_save_that_an_exit_waits_for(step: int, signals: Signal, after: Due) -> None:
    actions = step_actions(step, signals, after)

    assert not (actions.evaluate and actions.leave is Leave.WITH_CHECKPOINT)
    assert after.evaluation == (actions.evaluate or actions.evaluation_missing)
    assert not actions.evaluation_missing or actions.save


@given(some_steps, some_signals, some_dues)
def test_no_world_leaves_while_saves_fail_unless_it_saves(step: int, signals: Signal, after: Due) -> None:
    actions = step_actions(step, signals, after)

    assert actions.leave is Leave.NO or actions.save or not after.saves_fail
    assert not (actions.is_interruptible and after.saves_fail)


@given(some_steps, some_signals, some_dues.map(lambda after: replace(after, evaluation=True, saves_fail=False)))
def test_an_interrupted_evaluation_ends_in_a_checkpoint(step: int, signals: Signal, after: Due) -> None:
    before = step_actions(step, signals, after)
    if not before.is_interruptible:
        return
    rest = before.interrupt_evaluation()

    assert rest.save
    assert rest.leave is Leave.WITH_CHECKPOINT
    assert rest.evaluation_missing
    assert not rest.evaluate
    assert (before.snapshot, before.compare) == (not rest.snapshot, not rest.compare)


@given(st.integers(1, LAST - 1), some_signals, some_dues)
def test_a_replica_saves_evaluates_and_leaves_at_the_end_of_a_round_alone(
    step: int, signals: Signal, after: Due
) -> None:
    actions = step_actions(step, signals, replace(after, in_round=True))

    assert not any((actions.save, actions.evaluate, actions.evaluation_missing))
    assert actions.leave is Leave.NO
