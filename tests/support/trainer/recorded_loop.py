"""A loop whose parts only record their calls."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

from trainingjob_api.protocol import Phase
from trainingjob_api.spec.training import BatchSizes
from trainingjob_trainer.checkpoint.checkpoint_inventory import CheckpointInventory
from trainingjob_trainer.context import CompiledSteps, Context
from trainingjob_trainer.data.sampler import size_of_step
from trainingjob_trainer.loop import _join_rounds, _train_and_back_up, train
from trainingjob_trainer.monitoring.control_signals import ControlSignals
from trainingjob_trainer.objectives.scoring import Scores
from trainingjob_trainer.replicas.replica_training import EndedRound
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

    `rounds`: the interval of the rounds of replicas. `joins`: the step that this replica joins after. `behind`: the
    steps that it continues after where it is late, by the steps at which it ends its rounds. `is_saver`: whether it
    saves, and exports.
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
        rounds: int = 0,
        joins: int = 0,
        behind: dict[int, int] | None = None,
        is_saver: bool = True,
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
        self.checkpoints.finish_exports = lambda: None
        self.checkpoints.is_best = lambda measured: measured.get("news") in best
        self.snapshots = self._part("snapshot", snapshot)
        self.snapshots.has_step = lambda step: held[0]
        self.snapshots.stretch_signal = lambda: Signal.NONE
        self.snapshots.apply_stretch = self._stretch
        other = {"held": "held" if held[1] else "", "exit": ""}
        peers = SimpleNamespace(exchange=lambda name, text, seconds: (text, other[name.partition("/")[0]]))
        self.evaluator = self._part("evaluate", evaluate)
        self.replicas = self._part("compare", compare)
        self.replicas.check = self._compare
        self.evaluator.measure = self._evaluate
        programs: Any = SimpleNamespace(
            is_loaded=self.loaded.__contains__, load=self._load, choose=self._choose(statistics)
        )
        self.compiled = CompiledSteps({}, self.replicas, read_params=lambda state: AVERAGED)
        self.state: Any = SimpleNamespace(params=None, reference=REFERENCE)
        self.evaluator.ends_training = lambda losses: losses.get("news", 0) >= stop > 0
        self.checkpoints.newest, self.losses = restored[0], restored[1]
        self.checkpoints.inventory = CheckpointInventory(measured=restored[1])
        self.reporter: Any = SimpleNamespace(
            enter_phase=self._enter_phase,
            report_entry=lambda name: None,
            loading_batch=nullcontext,
            report=self._report,
            end_round=lambda is_writer: None,
            report_dropped=lambda num_steps: self.said.append(f"drop {num_steps}"),
            report_evaluations=lambda step, measured: self.said.append(f"evaluate {step}"),
            report_samples=lambda step, texts: self.said.extend(f"{text} {step}" for text in texts),
        )
        profiler: Any = SimpleNamespace(begin_step=lambda step, newest: None, end_step=lambda step, newest: None)
        training = SimpleNamespace(step_limit=last, seed=0)
        config: Any = SimpleNamespace(
            spec=SimpleNamespace(
                training=training,
                checkpoint=SimpleNamespace(export=None),
            )
        )
        steps = SimpleNamespace(controls=lambda asked, num_steps, teacher: asked)
        world: Any = SimpleNamespace(peers=peers, steps=steps, train=programs, datasets=SimpleNamespace(train=None))
        batches: Any = SimpleNamespace(train_batch=self._read, size_of_step=partial(size_of_step, sizes=sizes))
        sampler: Any = SimpleNamespace(write=self._sample)
        self.joins, self.behind = joins, behind or {}
        replica = self._part("round", rounds)
        replica.is_due = lambda step: step % rounds == 0 or step == last
        replica.join, replica.end_round, replica.is_saver = self._join, self._end_round, is_saver
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
            rounds=replica if rounds else None,
        )

    def train(self) -> list[str]:
        """Train to the end and return what happened; `step 3` is its dispatch."""
        self._meet("compile")
        first, state = _join_rounds(self.state, self.context)
        phase = train(first, state, self.compiled, self.context, self.losses or {})
        return [*self.said, phase]

    def resume(self) -> list[str]:
        """Evaluate the restored step, train to the end, and return what happened."""
        self.evaluator.is_missing = lambda step, losses: step == max(self.checkpoints.newest, self.joins)
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

    def _stretch(self, step: int, asked: Signal) -> None:
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

    def _join(self, state: Any) -> EndedRound:
        assert self.phase is Phase.SYNCHRONIZING
        self.said.append(f"join {self.joins}")
        return EndedRound(self.joins, state, 0)

    def _end_round(self, step: int, state: Any) -> EndedRound:
        assert self.phase is Phase.SYNCHRONIZING
        self.said.append(f"end round {step}")
        self._meet(f"end round {step}")
        return EndedRound(self.behind.get(step, step), state, 2 if step in self.behind else 0)

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
