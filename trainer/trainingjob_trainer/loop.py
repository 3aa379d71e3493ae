"""Train in one world: set up, restore, compile, loop.

In a hot standby world, the programs are compiled before the state is restored: the process waits there for the world
that it will train in.
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import jax

from trainingjob_agent.trainer_protocol import AgentEvent, StartWorld
from trainingjob_api.protocol import Phase
from trainingjob_trainer.aot.hot_standby import wait_in_hot_standby
from trainingjob_trainer.aot.neighbor_compiler import NeighborCompiler
from trainingjob_trainer.checkpoint.initial_state import make_initial_state
from trainingjob_trainer.checkpoint.teacher_params import load_teacher
from trainingjob_trainer.context import (
    CompiledSteps,
    Context,
    JoinedWorld,
    Restored,
    compile_steps,
    find_share,
    join_world,
    open_rounds,
    restore_state,
)
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.data.model_files import keep_model_files
from trainingjob_trainer.data.training_length import TrainingLength, find_training_length, resolve_epochs
from trainingjob_trainer.huggingface.export_weights import gather_from
from trainingjob_trainer.huggingface.model_export import ExportTarget, export_model
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.monitoring.bad_steps import BadStepError
from trainingjob_trainer.monitoring.control_signals import ControlSignals
from trainingjob_trainer.monitoring.evaluation import Evaluator
from trainingjob_trainer.monitoring.scheduling_delay import SchedulingDelayMonitor
from trainingjob_trainer.monitoring.step_actions import Due, Leave, StepActions, step_actions
from trainingjob_trainer.monitoring.step_profiler import StepProfiler
from trainingjob_trainer.monitoring.step_reporter import StepReporter
from trainingjob_trainer.monitoring.text_samples import TextSampler
from trainingjob_trainer.prepare.job_folder import claim_folder, prepare_weights, resolve_start
from trainingjob_trainer.replicas.replica_training import ReplicaTraining
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.state import Signal, State, StepMetrics, TrainStep
from trainingjob_trainer.store.opening import open_store

READY_SECONDS = 1800
"""Seconds that the first ready process waits for the last: each restores and compiles at its own speed."""
EXIT_BARRIER_SECONDS = 60
SNAPSHOT_EXCHANGE_SECONDS = 60
"""Seconds that the first process with a complete snapshot waits for the last."""


def run(
    start: StartWorld, events: AgentEvents, signals: ControlSignals, receive_start: Callable[[], StartWorld]
) -> None:
    """Train in a world until all steps are done or the world is left, and report which.

    If `start` describes a hot standby world, `receive_start` waits for the world to train in.

    Raises:
        TrainingError: training cannot continue, for a known reason.
        Exception: training cannot continue, and the error is not classified yet.
    """
    joined, compiled = None, None
    if start.waits:
        joined, compiled, start = wait_in_hot_standby(resolve_start(start), events, receive_start)

    events.enter_phase(Phase.PREPARING)
    claim_folder(start)
    prepare_weights(start)
    start = resolve_start(start)
    joined = joined or join_world(start, events)
    if start.process == 0:
        keep_model_files(open_store(start.config.spec.checkpoint.uri), start.config.spec)
        events.send(AgentEvent(data=joined.datasets.report))

    events.enter_phase(Phase.RESTORING)
    restored = restore_state(start, joined, events)

    length = find_training_length(
        joined.datasets.train, start.config.spec.training, restored.checkpoints.past.batch_sizes
    )
    start = _with_steps(start, length.steps)

    events.enter_phase(Phase.COMPILING)
    state = restored.state or make_initial_state(start.config.spec, joined.steps, joined.programs, joined.peers, events)
    state, rounds = open_rounds(start, joined, state, restored.checkpoints, signals)
    steps, stored = joined.steps, joined.datasets.train.stored_hash
    state, teacher = load_teacher(start.config.spec, steps.teacher_shapes, state, joined.peers, stored)
    compiled = compiled or compile_steps(start, joined)
    joined.peers.barrier("ready", READY_SECONDS)  # a first collective fails if a peer is 30 s late

    with _open_context(start, joined, compiled, restored, length, events, signals, teacher, rounds) as context:
        phase = _train_and_back_up(state, compiled, context)
    events.enter_phase(phase)
    joined.peers.exit_barrier(EXIT_BARRIER_SECONDS)


def _with_steps(start: StartWorld, steps: int) -> StartWorld:
    """Return the start of a world with the number of its steps, if `training.epochs` decides it."""
    config = start.config.model_copy(update={"spec": resolve_epochs(start.config.spec, steps)})
    return start.model_copy(update={"config": config})


@contextmanager
def _open_context(
    start: StartWorld,
    joined: JoinedWorld,
    compiled: CompiledSteps,
    restored: Restored,
    length: TrainingLength,
    events: AgentEvents,
    signals: ControlSignals,
    teacher: Params | None,
    rounds: ReplicaTraining | None,
) -> Iterator[Context]:
    """Report the restored step, and provide the context of the world while it trains."""
    spec, checkpoints, snapshots = start.config.spec, restored.checkpoints, restored.snapshots
    newest, past = checkpoints.newest, checkpoints.past
    events.send(
        AgentEvent(restored=newest, total_steps=length.steps, tier=checkpoints.tier, missing_lineage=past.spans[:-1])
    )
    snapshots.begin(checkpoints.restored_snapshot, past)
    batches = BatchLoader(
        joined.layout,
        joined.steps.batch_sharding,
        spec.training.largest_batch,
        past.history,
        length,
        find_share(start.world),
    )
    evaluator = Evaluator(spec, joined.datasets.evaluations, joined.steps, compiled.evaluations, batches)
    sampler = TextSampler(spec, joined.steps, compiled.token_programs)
    with (
        SchedulingDelayMonitor() as delay,
        StepReporter(
            start,
            events,
            open_store(spec.checkpoint.uri),
            restored=newest,
            snapshots=snapshots,
            stalls=delay,
            samples=batches.samples,
            sizes=past.batch_sizes,
            recent=restored.recent_metrics,
        ) as reporter,
        StepProfiler(start, open_store(spec.checkpoint.uri), signals) as profiler,
        NeighborCompiler(start, events, snapshots, restored=newest),
    ):
        yield Context(
            start.config,
            joined,
            batches,
            evaluator,
            sampler,
            checkpoints,
            snapshots,
            reporter,
            profiler,
            signals,
            teacher,
            rounds,
        )


def _train_and_back_up(state: State, compiled: CompiledSteps, context: Context) -> Phase:
    """Run the evaluation that the previous world owes, train, and wait for the backup if training is done.

    A replica first joins the others, at a step that may be later than the restored one.
    """
    checkpoints = context.checkpoints
    first, state = _join_rounds(state, context)
    try:
        losses = checkpoints.inventory.measured if first == checkpoints.newest else None
        if context.evaluator.is_missing(first, losses):
            losses = _evaluate(first, state, compiled, context, context.signals)
            if losses is None:
                _save_unsaved(first, state, context)
                return Phase.LEFT
        phase = train(first, state, compiled, context, losses or {})
        if phase is Phase.DONE:
            checkpoints.finish_exports()
            checkpoints.wait_for_backup()
    except BadStepError:
        context.reporter.enter_phase(Phase.SAVING)
        checkpoints.wait()  # the next world resumes from earlier saves: all hosts report them first
        raise
    return phase


def _save_unsaved(step: int, state: State, context: Context) -> None:
    """Save a step if it is in memory alone. One that a replica has joined after is in the log of rounds."""
    checkpoints = context.checkpoints
    if step == checkpoints.newest and not checkpoints.inventory.is_saved:
        context.reporter.enter_phase(Phase.SAVING)
        checkpoints.save(step, state)
        checkpoints.save_until_success(step, state)


def train(first: int, state: State, compiled: CompiledSteps, context: Context, losses: Mapping[str, float]) -> Phase:
    """Train after step `first`; return DONE, or LEFT if any process of the world received EXIT or RESCALE.

    `losses` are the held-out losses of that step. Training is done after the last step, or after a step whose held-out
    loss ends it. An unsaved step `first` is saved if no step follows, as after an edit, or if it is among the best.

    The metrics of a step are read after the next one is dispatched, so that the device never waits for the host. They
    are read at once if an action follows the step. All processes read the same metrics at the same step, so that they
    save, leave and fail together.

    While saves fail, a world that receives EXIT keeps training, and leaves with the next save that succeeds. A replica
    keeps training up to the end of its round; if it is killed before, its steps of that round are dropped. The next
    world runs an evaluation that is missing, and no world is done before it has run.
    """
    checkpoints, snapshots = context.checkpoints, context.snapshots
    reporter, profiler = context.reporter, context.profiler
    last = first if context.evaluator.ends_training(losses) else context.last_step
    unreported: StepMetrics | None = None
    actions, deferred = StepActions(), Signal.NONE
    is_restored = first == checkpoints.newest
    is_saved = is_restored and checkpoints.inventory.is_saved
    if not is_saved and (first >= last or (is_restored and checkpoints.is_best(losses))):
        checkpoints.save(first, state, losses)
    gc.freeze()  # existing objects stay: each collection scanned them for 0.1 s, on all hosts at the same step
    step = first
    reporter.enter_phase(Phase.TRAINING)
    while step < last:
        step += 1
        train_step = _load_train_step(step, context)
        batch = context.train_batch(step)
        reporter.report_entry(f"step {step}")
        profiler.begin_step(step, unreported)
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            state, metrics = train_step(state, batch, context.controls())
        profiler.end_step(step, metrics)
        signals = deferred | (reporter.report(step - 1, unreported) if unreported else Signal.NONE)
        unreported = metrics
        checkpoints.raise_background_error()
        due = _find_due(step, compiled, context)
        actions = step_actions(step, signals, due)
        deferred = signals & Signal.SAVE if due.in_round else Signal.NONE  # it is sent once
        if not actions.report:
            continue
        signals |= reporter.report(step, metrics)
        unreported = None
        if context.rounds and context.rounds.is_due(step):
            step, state, exit_signal = _end_round(step, state, context.rounds, context)
            signals |= exit_signal
        elif due.in_round:
            deferred = signals & Signal.SAVE
        snapshots.apply_stretch(step, signals)
        actions = step_actions(step, signals, _find_due(step, compiled, context))
        actions = _finish_step(step, state, actions, compiled, context)
        if actions.ends:
            last = step
            break
        if actions.leave is not Leave.NO and not checkpoints.is_failing:
            break
        reporter.enter_phase(Phase.TRAINING)
    reporter.enter_phase(Phase.SAVING)
    snapshots.wait()
    checkpoints.save_until_success(max(checkpoints.newest, last), state)
    if checkpoints.newest < last or actions.evaluation_missing:
        return Phase.LEFT
    _export(state, compiled, context)
    return Phase.DONE


def _export(state: State, compiled: CompiledSteps, context: Context) -> None:
    """Write the trained weights for other programs, if the spec has an export of the last step.

    One replica does it: if it is lost, the next one that joins after the last step does.
    """
    if context.rounds and not context.rounds.is_saver:
        return
    spec = context.config.spec
    export = spec.checkpoint.export.hugging_face if spec.checkpoint.export else None
    if export and export.when != "kept":
        dtype = export.dtype or spec.precision.params
        target = ExportTarget(open_store(export.uri), dtype, adapter=export.adapter or "merged")
        gather = gather_from(compiled.read_params(state))
        export_model(spec, gather, open_store(spec.checkpoint.uri), target, context.world.peers)


def _load_train_step(step: int, context: Context) -> TrainStep:
    """Return the program of a step, whose batch size may be new."""
    size = context.batches.size_of_step(step)
    programs = context.world.train
    if not programs.is_loaded(size):
        context.reporter.enter_phase(Phase.COMPILING)
        programs.load(size)
        context.reporter.enter_phase(Phase.TRAINING)
    return programs.choose(step, size)


def _join_rounds(state: State, context: Context) -> tuple[int, State]:
    """Return the step that training continues after, and its state: the newest one, or that of the other replicas."""
    if context.rounds is None:
        return context.checkpoints.newest, state
    context.reporter.enter_phase(Phase.SYNCHRONIZING)
    step, state, _ = context.rounds.join(state)
    return step, state


def _end_round(step: int, state: State, rounds: ReplicaTraining, context: Context) -> tuple[int, State, Signal]:
    """Synchronize with the other replicas; return the step that training continues after, its state, and a signal.

    The signal is EXIT if any process has received it meanwhile: the next round would be a long time to wait.
    """
    context.reporter.enter_phase(Phase.SYNCHRONIZING)
    ended = step
    step, state, dropped_steps = rounds.end_round(step, state)
    context.reporter.end_round(is_writer=rounds.is_saver)
    if dropped_steps:
        context.reporter.report_dropped(dropped_steps)
    vote = "exit" if context.signals.exit_signal else ""
    exits = any(context.world.peers.exchange(f"exit/{ended}", vote, READY_SECONDS))
    return step, state, Signal.EXIT if exits else Signal.NONE


def _find_due(step: int, compiled: CompiledSteps, context: Context) -> Due:
    return Due(
        last_step=context.last_step,
        round_end=context.rounds is not None and context.rounds.is_due(step),
        in_round=context.rounds is not None and not context.rounds.is_due(step),
        save=context.checkpoints.is_due(step),
        snapshot=context.snapshots.is_due(step),
        evaluation=context.evaluator.is_due(step),
        comparison=compiled.replicas.is_due(step),
        new_batch_size=context.batches.size_of_step(step + 1) != context.batches.size_of_step(step),
        saves_fail=context.checkpoints.is_failing,
    )


def _finish_step(
    step: int, state: State, actions: StepActions, compiled: CompiledSteps, context: Context
) -> StepActions:
    """Do the actions that follow a reported step; return them as they were after its evaluation."""
    losses: dict[str, float] | None = {}
    _compare_and_snapshot(step, state, actions, compiled, context)
    if actions.evaluate:
        signals = context.signals if actions.is_interruptible else ControlSignals()
        losses = _evaluate(step, state, compiled, context, signals)
        if losses is None:
            actions = actions.interrupt_evaluation()
            _compare_and_snapshot(step, state, actions, compiled, context)
        elif context.evaluator.ends_training(losses):
            actions = actions.end_training()
            _compare_and_snapshot(step, state, actions, compiled, context)
    save = actions.save
    if not save and context.checkpoints.is_best(losses or {}):
        save = True
        if not actions.compare:
            compiled.replicas.check(step, state)
    if actions.leave is Leave.WITH_SNAPSHOT and not save:
        save = not _is_in_memory_everywhere(step, context)
    if save:
        context.reporter.enter_phase(Phase.SAVING)
        context.checkpoints.save(step, state, losses or {})
    if actions.leave is not Leave.NO:
        context.checkpoints.wait()
    return actions


def _compare_and_snapshot(
    step: int, state: State, actions: StepActions, compiled: CompiledSteps, context: Context
) -> None:
    """Compare the replicas of the state after a step, then take its snapshot, if the actions include it."""
    if actions.compare:
        compiled.replicas.check(step, state)
    if actions.snapshot:
        context.snapshots.take(step, state)


def _evaluate(
    step: int, state: State, compiled: CompiledSteps, context: Context, signals: ControlSignals
) -> dict[str, float] | None:  # None: it was interrupted, because a process received EXIT
    """Measure and report the held-out scores that are due after a step, then the samples' texts; return the losses."""
    reporter = context.reporter
    reporter.enter_phase(Phase.EVALUATING)
    arguments = step, compiled.read_params(state), lambda: signals.exit_signal, reporter.report_entry
    reference = state.reference if context.teacher is None else context.teacher
    measured = context.evaluator.measure(*arguments, reference)
    texts = None if measured is None else context.sampler.write(*arguments)
    if measured is None or texts is None:
        return None
    reporter.report_evaluations(step, measured)
    reporter.report_samples(step, texts)
    return {name: scores.loss for name, scores in measured.items()}


def _is_in_memory_everywhere(step: int, context: Context) -> bool:
    """Return whether all hosts hold a step in memory; all of them get the same answer."""
    vote = "held" if context.snapshots.has_step(step) else ""
    return all(context.world.peers.exchange(f"held/{step}", vote, SNAPSHOT_EXCHANGE_SECONDS))
