"""The loop: the order in which a step is reported, kept, evaluated and saved."""

import gc
from types import SimpleNamespace

import pytest

from tests.support.trainer.recorded_loop import AVERAGED, Notes
from trainingjob_api.protocol import Phase
from trainingjob_trainer import loop
from trainingjob_trainer.state import Signal


@pytest.mark.usefixtures("thawed")
def test_garbage_collector_ignores_the_objects_of_startup() -> None:
    stands = [object()]
    before = gc.get_freeze_count()

    Notes(1).train()

    assert gc.get_freeze_count() > before
    assert all(one is not stands for one in gc.get_objects())


TRIED_AT_2 = "step 1, step 2, report 1, report 2, snapshot 2, save 2"
ORDERS: dict[str, tuple[Notes, str]] = {
    "the device never waits for the host": (
        Notes(3),
        "step 1, step 2, report 1, step 3, report 2, report 3, save 3, done",
    ),
    "the program of a new batch size is compiled after the step before is reported": (
        Notes(5, sizes=((1, 8), (3, 16))),
        (
            "step 1, step 2, report 1, report 2, compile for 16, step 3, step 4, report 3, step 5, report 4, report 5, "
            "save 5, done"
        ),
    ),
    "the program of a batch size that returns is kept": (
        Notes(3, sizes=((1, 8), (2, 16), (3, 8))),
        "step 1, report 1, compile for 16, step 2, report 2, step 3, report 3, save 3, done",
    ),
    "a step that is among the best is saved after its evaluation": (
        Notes(3, evaluate=2, best=(2,)),
        "step 1, step 2, report 1, report 2, evaluate 2, save 2, step 3, report 3, save 3, done",
    ),
    "replicas are compared before a step is saved as one of the best": (
        Notes(3, evaluate=2, best=(2,), compare=9),
        "step 1, step 2, report 1, report 2, evaluate 2, compare 2, save 2, step 3, report 3, compare 3, save 3, done",
    ),
    "replicas that were compared are not compared again for one of the best": (
        Notes(3, evaluate=2, best=(2,), compare=2),
        "step 1, step 2, report 1, report 2, compare 2, evaluate 2, save 2, step 3, report 3, compare 3, save 3, done",
    ),
    "a step is told before it is kept in memory": (
        Notes(3, snapshot=2),
        "step 1, step 2, report 1, report 2, snapshot 2, step 3, report 3, save 3, done",
    ),
    "snapshots lie further apart before the next one is due": (
        Notes(3, snapshot=2, asked={1: Signal.STRETCH_SNAPSHOTS}),
        "step 1, step 2, report 1, report 2, stretch 2, snapshot 2, step 3, report 3, save 3, done",
    ),
    "a step is told, kept, evaluated and saved": (
        Notes(2, snapshot=1, evaluate=2, save=1),
        "step 1, report 1, snapshot 1, save 1, step 2, report 2, snapshot 2, evaluate 2, save 2, done",
    ),
    "replicas are compared after a step is told, and before any is kept or saved": (
        Notes(4, compare=3, snapshot=2),
        (
            "step 1, step 2, report 1, report 2, compare 2, snapshot 2, step 3, report 3, compare 3, "
            "step 4, report 4, compare 4, snapshot 4, save 4, done"
        ),
    ),
    "norms are measured at their interval": (
        Notes(4, statistics=2),
        "step 1, norms, step 2, report 1, step 3, report 2, norms, step 4, report 3, report 4, save 4, done",
    ),
    "who is asked to leave saves the next step and keeps it": (
        Notes(9, asked={1: Signal.EXIT}),
        "step 1, step 2, report 1, report 2, snapshot 2, save 2, left",
    ),
    "who is asked at a step that is told at once saves that one, and evaluates nothing before": (
        Notes(9, evaluate=2, asked={2: Signal.EXIT}),
        "step 1, step 2, report 1, report 2, snapshot 2, save 2, left",
    ),
    "who is asked before the first step leaves with the second": (
        Notes(9, leave="compile"),
        "step 1, step 2, report 1, report 2, snapshot 2, save 2, left",
    ),
    "who is asked while it waits for data leaves with the next step but one": (
        Notes(9, leave="read 3"),
        "step 1, step 2, report 1, step 3, report 2, step 4, report 3, report 4, snapshot 4, save 4, left",
    ),
    "who is asked while it evaluates breaks off and saves that step": (
        Notes(9, leave="evaluate 2", evaluate=2),
        "step 1, step 2, report 1, report 2, break off 2, snapshot 2, save 2, left",
    ),
    "who breaks off keeps a step once": (
        Notes(9, leave="evaluate 2", evaluate=2, snapshot=2),
        "step 1, step 2, report 1, report 2, snapshot 2, break off 2, save 2, left",
    ),
    "who breaks off compares what it keeps": (
        Notes(9, leave="evaluate 2", evaluate=2, compare=9),
        "step 1, step 2, report 1, report 2, break off 2, compare 2, snapshot 2, save 2, left",
    ),
    "who is to move and is asked to leave while it evaluates saves": (
        Notes(9, leave="evaluate 2", evaluate=2, asked={2: Signal.RESCALE}),
        "step 1, step 2, report 1, report 2, snapshot 2, break off 2, save 2, left",
    ),
    "who is asked to move evaluates first: nothing ends before": (
        Notes(9, evaluate=2, asked={2: Signal.RESCALE}),
        "step 1, step 2, report 1, report 2, snapshot 2, evaluate 2, left",
    ),
    "texts follow an evaluation": (
        Notes(3, evaluate=2, samples=True),
        "step 1, step 2, report 1, report 2, evaluate 2, sample 2, step 3, report 3, save 3, done",
    ),
    "who is asked while it writes texts leaves without the losses, which the next world measures": (
        Notes(9, leave="sample 2", evaluate=2),
        "step 1, step 2, report 1, report 2, break off 2, snapshot 2, save 2, left",
    ),
    "who leaves at the last step owes its evaluation, and is not done": (
        Notes(2, evaluate=2, asked={2: Signal.EXIT}),
        "step 1, step 2, report 1, report 2, snapshot 2, save 2, left",
    ),
    "who breaks off the last evaluation is not done either": (
        Notes(2, leave="evaluate 2", evaluate=2),
        "step 1, step 2, report 1, report 2, break off 2, snapshot 2, save 2, left",
    ),
    "a save is asked for": (
        Notes(4, asked={2: Signal.SAVE}),
        "step 1, step 2, report 1, step 3, report 2, report 3, save 3, step 4, report 4, save 4, done",
    ),
    "a save is asked for while one is due": (
        Notes(4, save=2, asked={2: Signal.SAVE}),
        "step 1, step 2, report 1, report 2, save 2, step 3, step 4, report 3, report 4, save 4, done",
    ),
    "training goes on where a save fails": (
        Notes(3, save=1, failing=(1,)),
        "step 1, report 1, save 1, step 2, report 2, save 2, step 3, report 3, save 3, done",
    ),
    "the last step is tried until it is saved": (
        Notes(2, failing=(2,)),
        "step 1, step 2, report 1, report 2, save 2, insist 2, done",
    ),
    "who is asked to leave and cannot save trains on, and leaves with the next save that does not fail": (
        Notes(9, save=4, asked=dict.fromkeys(range(1, 10), Signal.EXIT), failing=(2,)),
        f"{TRIED_AT_2}, step 3, step 4, report 3, report 4, snapshot 4, save 4, left",
    ),
    "who cannot save, and so trains on, evaluates to the end": (
        Notes(9, save=4, evaluate=3, asked=dict.fromkeys(range(1, 10), Signal.EXIT), failing=(2,), leave="evaluate 3"),
        f"{TRIED_AT_2}, step 3, report 3, evaluate 3, step 4, report 4, snapshot 4, save 4, left",
    ),
    "a save that is asked for is such a one": (
        Notes(9, asked={1: Signal.EXIT, 2: Signal.EXIT, 3: Signal.EXIT | Signal.SAVE}, failing=(2,)),
        f"{TRIED_AT_2}, step 3, step 4, report 3, report 4, snapshot 4, save 4, left",
    ),
    "who is asked to move keeps the next step, and saves nothing": (
        Notes(9, asked={1: Signal.RESCALE}),
        "step 1, step 2, report 1, report 2, snapshot 2, left",
    ),
    "who is asked to move saves what is due": (
        Notes(9, asked={1: Signal.RESCALE}, save=2),
        "step 1, step 2, report 1, report 2, snapshot 2, save 2, left",
    ),
    "who is asked to move and cannot keep the step saves it": (
        Notes(9, asked={1: Signal.RESCALE}, held=(False, True)),
        "step 1, step 2, report 1, report 2, snapshot 2, save 2, left",
    ),
    "who is asked to move saves what another cannot keep": (
        Notes(9, asked={1: Signal.RESCALE}, held=(True, False)),
        "step 1, step 2, report 1, report 2, snapshot 2, save 2, left",
    ),
    "who is asked to move, where another is asked to leave, saves": (
        Notes(9, asked={1: Signal.RESCALE | Signal.EXIT}),
        "step 1, step 2, report 1, report 2, snapshot 2, save 2, left",
    ),
    "who is asked to move while saves fail trains on, and moves with the next save that does not fail": (
        Notes(9, save=2, asked=dict.fromkeys(range(3, 10), Signal.RESCALE), failing=(2,)),
        ("step 1, step 2, report 1, report 2, save 2, step 3, step 4, report 3, report 4, snapshot 4, save 4, left"),
    ),
    "who is asked to move at the last step saves it and is done": (
        Notes(2, asked={2: Signal.RESCALE}),
        "step 1, step 2, report 1, report 2, snapshot 2, save 2, done",
    ),
    "a replica ends a round before it compares, keeps, evaluates and saves": (
        Notes(3, rounds=2, compare=2, snapshot=2, evaluate=2, save=2),
        (
            "join 0, step 1, step 2, report 1, report 2, end round 2, compare 2, snapshot 2, evaluate 2, save 2, "
            "step 3, report 3, end round 3, compare 3, save 3, done"
        ),
    ),
    "a replica that was behind continues after the step of the others, and does what follows that one": (
        Notes(7, rounds=2, joins=2, behind={4: 6}, evaluate=4, save=6),
        (
            "join 2, step 3, step 4, report 3, report 4, end round 4, drop 2, save 6, step 7, report 7, end round 7, "
            "save 7, done"
        ),
    ),
    "a replica that must leave does so at the end of its round": (
        Notes(9, rounds=3, asked=dict.fromkeys(range(1, 4), Signal.EXIT)),
        "join 0, step 1, step 2, report 1, step 3, report 2, report 3, end round 3, snapshot 3, save 3, left",
    ),
    "a replica that must leave while it waits for the others does so at once": (
        Notes(9, rounds=3, leave="end round 3"),
        "join 0, step 1, step 2, report 1, step 3, report 2, report 3, end round 3, snapshot 3, save 3, left",
    ),
    "a replica saves and evaluates what is due within a round at its end alone": (
        Notes(4, rounds=3, asked={1: Signal.SAVE}, evaluate=2, save=2),
        (
            "join 0, step 1, step 2, report 1, step 3, report 2, report 3, end round 3, save 3, step 4, report 4, "
            "end round 4, evaluate 4, save 4, done"
        ),
    ),
    "a save that is due by time within a round waits for its end, also after a step with other actions": (
        Notes(4, rounds=3, asked={2: Signal.SAVE}, compare=2),
        (
            "join 0, step 1, step 2, report 1, report 2, compare 2, step 3, report 3, end round 3, compare 3, save 3, "
            "step 4, report 4, end round 4, compare 4, save 4, done"
        ),
    ),
    "who is asked at the last step is done": (
        Notes(2, asked={2: Signal.EXIT}),
        "step 1, step 2, report 1, report 2, snapshot 2, save 2, done",
    ),
}


@pytest.mark.parametrize(("notes", "want"), ORDERS.values(), ids=ORDERS.keys())
def test_the_order_of_a_step(notes: Notes, want: str) -> None:
    assert notes.train() == [*want.split(", ")[:-1], Phase(want.rpartition(", ")[2])]


@pytest.mark.parametrize("is_saver", [True, False])
def test_one_replica_exports_the_trained_weights(is_saver: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    exported: list[object] = []
    notes = Notes(2, rounds=2, is_saver=is_saver)
    hugging_face = SimpleNamespace(when="last", dtype="float32", adapter=None, uri="/exports")
    notes.context.config.spec.checkpoint = SimpleNamespace(
        export=SimpleNamespace(hugging_face=hugging_face), uri="/run"
    )
    monkeypatch.setattr(loop, "gather_from", lambda params: params)
    monkeypatch.setattr(loop, "export_model", lambda spec, params, *rest: exported.append(params))

    assert notes.train()[-1] is Phase.DONE

    assert exported == ([AVERAGED] if is_saver else [])
