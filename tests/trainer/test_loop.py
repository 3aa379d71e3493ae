"""The loop: the order in which a step is reported, kept, evaluated and saved."""

import gc
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from trainingjob_api.protocol import Phase
from trainingjob_api.spec.training import BatchSizes
from trainingjob_trainer.checkpoint.checkpoint_inventory import CheckpointInventory
from trainingjob_trainer.context import CompiledSteps, Context
from trainingjob_trainer.data.sampler import size_of_step
from trainingjob_trainer.loop import _train_and_back_up, train
from trainingjob_trainer.monitoring.control_signals import ControlSignals
from trainingjob_trainer.objectives.scoring import Scores
from trainingjob_trainer.state import Signal, TrainStep

AVERAGED: Any = object()
"""The parameters that evaluations and samples use."""
REFERENCE: Any = object()
"""The parameters that evaluations compare with."""


class Notes:
    """All parts of a loop at once, which only record their calls.

    The numbers are intervals in steps; 0: never. `asked`: signals of processes, by the step at which they arrive.
    `failing`: the steps that cannot be saved, `best`: those whose evaluation requests a save. `leave`: the activity
    during which this process gets the request to drain. `held`: whether this process has its snapshot in memory, and
    whether the other one has. `sizes`: the batch sizes, of which the program of the first is loaded.
    """

    def __init__(
        self,
        last: int,
        *,
        save: int = 0,
        snapshot: int = 0,
        evaluate: int = 0,
        compare: int = 0,
        statistics: int = 0,
        asked: dict[int, Signal] | None = None,
        failing: tuple[int, ...] = (),
        best: tuple[int, ...] = (),
        stop: float = 0,
        restored: tuple[int, dict[str, float] | None] = (0, {}),
        leave: str = "",
        samples: bool = False,
        held: tuple[bool, bool] = (True, True),
        sizes: BatchSizes = ((1, 8),),
    ) -> None:
        self.said: list[str] = []
        self.leave = leave
        self.samples = samples
        self.asks = ControlSignals()
        self.told: dict[int, Signal] = {}
        self.asked = asked or {}
        self.failing = failing
        self.compares = compare > 0
        self.measured = 0
        self.loaded = {sizes[0][1]}
        self.phase = Phase.TRAINING
        self.checkpoints = self._part("save", save)
        self.checkpoints.save = self._save
        self.checkpoints.save_signal = lambda: Signal.NONE
        self.checkpoints.save_until_success = self._insist
        self.checkpoints.wait_for_backup = lambda: None
        self.checkpoints.is_best = lambda measured: measured.get("news") in best
        self.snapshots = self._part("snapshot", snapshot)
        self.snapshots.has_step = lambda step: held[0]
        self.snapshots.stretch_signal = lambda: Signal.NONE
        self.snapshots.apply_stretch = self._heed
        peers = SimpleNamespace(exchange=lambda name, text, seconds: (text, "held" if held[1] else ""))
        self.evaluator = self._part("evaluate", evaluate)
        self.replicas = self._part("compare", compare)
        self.replicas.check = self._compare
        self.evaluator.measure = self._evaluate
        programs: Any = SimpleNamespace(
            is_loaded=self.loaded.__contains__, load=self._load, choose=self._choose(statistics)
        )
        self.compiled = CompiledSteps(programs, None, self.replicas, read_params=lambda state: AVERAGED)
        self.state: Any = SimpleNamespace(params=None, reference=REFERENCE)
        self.evaluator.ends_training = lambda losses: losses.get("news", 0) >= stop > 0
        self.checkpoints.newest, self.losses = restored[0], restored[1]
        self.checkpoints.inventory = CheckpointInventory(measured=restored[1])
        self.reporter: Any = SimpleNamespace(
            enter_phase=self._enter_phase,
            report_entry=lambda name: None,
            report=self._report,
            report_evaluations=lambda step, measured: self.said.append(f"evaluate {step}"),
            report_samples=lambda step, texts: self.said.extend(f"{text} {step}" for text in texts),
        )
        profiler: Any = SimpleNamespace(begin_step=lambda step, newest: None, end_step=lambda step, newest: None)
        training = SimpleNamespace(steps=last, seed=0)
        config: Any = SimpleNamespace(
            spec=SimpleNamespace(
                training=training,
                checkpoint=SimpleNamespace(export=None),
            )
        )
        steps = SimpleNamespace(controls=lambda asked, num_steps: asked)
        world: Any = SimpleNamespace(peers=peers, steps=steps, datasets=SimpleNamespace(train=None))
        batches: Any = SimpleNamespace(train_batch=self._read, size_of_step=partial(size_of_step, sizes=sizes))
        sampler: Any = SimpleNamespace(write=self._sample)
        self.context = Context(
            config,
            world,
            batches,
            self.evaluator,
            sampler,
            self.checkpoints,
            self.snapshots,
            self.reporter,
            profiler,
            self.asks,
        )

    def train(self) -> list[str]:
        """Train to the end and return what happened; `step 3` is its dispatch."""
        self._meet("compile")
        phase = train(self.state, self.compiled, self.context, self.losses or {})
        return [*self.said, phase]

    def resume(self) -> list[str]:
        """Evaluate the restored step, train to the end, and return what happened."""
        self.evaluator.is_missing = lambda step, losses: step == self.checkpoints.newest
        phase = _train_and_back_up(self.state, self.compiled, self.context)
        return [*self.said, phase]

    def _part(self, name: str, every: int) -> Any:
        def take(step: int, state: object) -> None:
            self.said.append(f"{name} {step}")

        return SimpleNamespace(
            newest=0,
            inventory=CheckpointInventory(),
            is_failing=False,
            is_due=lambda step: bool(every) and step % every == 0,
            take=take,
            raise_background_error=lambda: None,
            wait=lambda: None,
        )

    def _meet(self, name: str) -> None:
        """Receive the request to drain during this activity, if it is the chosen one."""
        if name == self.leave:
            self.asks.request_exit()

    def _enter_phase(self, phase: Phase) -> None:
        self.phase = phase

    def _load(self, global_batch_size: int) -> None:
        assert self.phase is Phase.COMPILING
        self.said.append(f"compile for {global_batch_size}")
        self.loaded.add(global_batch_size)

    def _choose(self, statistics: int) -> Callable[[int, int], TrainStep]:
        def choose(step: int, global_batch_size: int) -> TrainStep:
            assert global_batch_size in self.loaded
            if statistics and step % statistics == 0:
                self.said.append("norms")
            return self._step

        return choose

    def _read(self, index: object, step: int, seed: int) -> int:
        self._meet(f"read {step}")
        return step

    def _evaluate(
        self, step: int, params: object, ask: Callable[[], Signal], tell: Callable[[str], None], reference: object
    ) -> dict[str, Scores] | None:
        self._meet(f"evaluate {step}")
        assert (params, reference) == (AVERAGED, REFERENCE)
        if ask():
            self.said.append(f"break off {step}")
            return None
        self.measured = step
        return {"news": Scores(step, 0.5, None)}

    def _sample(
        self, step: int, params: object, ask: Callable[[], Signal], tell: Callable[[str], None]
    ) -> list[str] | None:
        self._meet(f"sample {step}")
        assert params is AVERAGED
        if ask():
            self.measured = 0
            self.said.append(f"break off {step}")
            return None
        return ["sample"] if self.samples else []

    def _heed(self, step: int, asked: Signal) -> None:
        if Signal.STRETCH_SNAPSHOTS in asked:
            self.said.append(f"stretch {step}")

    def _compare(self, step: int, state: object) -> None:
        if self.compares:
            self.said.append(f"compare {step}")

    def _step(self, state: Any, batch: Any, controls: Any) -> Any:
        assert self.phase is Phase.TRAINING
        self.said.append(f"step {batch}")
        self.told[batch] = controls
        return state, batch

    def _report(self, step: int, measures: Any) -> Signal:
        assert measures == step
        self.said.append(f"report {step}")
        return self.told[step] | self.asked.get(step, Signal.NONE)

    def _save(self, step: int, state: object, measured: dict[str, float] | None = None) -> None:
        assert (measured or {}) == ({"news": step} if self.measured == step else {})
        self.said.append(f"save {step}")
        self.checkpoints.is_failing = step in self.failing
        if step not in self.failing:
            self.checkpoints.newest = step

    def _insist(self, step: int, state: object) -> None:
        if self.checkpoints.is_failing:
            self.said.append(f"insist {step}")
            self.checkpoints.newest = step


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
    "who is asked at the last step is done": (
        Notes(2, asked={2: Signal.EXIT}),
        "step 1, step 2, report 1, report 2, snapshot 2, save 2, done",
    ),
}


@pytest.mark.parametrize(("notes", "want"), ORDERS.values(), ids=ORDERS.keys())
def test_the_order_of_a_step(notes: Notes, want: str) -> None:
    assert notes.train() == [*want.split(", ")[:-1], Phase(want.rpartition(", ")[2])]
