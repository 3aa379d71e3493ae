"""Train in one world: set up, restore, compile, loop.

In a hot standby world, the programs are compiled before the state is restored: the process waits there for the world
that it will train in.
"""

import gc
from collections.abc import Callable
from pathlib import Path

from trainingjob_agent.trainer_protocol import AgentEvent, StartWorld
from trainingjob_api.protocol import Phase
from trainingjob_api.spec.checkpoint import InitializeFrom
from trainingjob_trainer.aot.hot_standby import wait_in_hot_standby
from trainingjob_trainer.aot.neighbor_compiler import NeighborCompiler
from trainingjob_trainer.checkpoint import backup, owner
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.checkpoint.initialize import load_initial_params
from trainingjob_trainer.checkpoint.single_replica import SingleReplicaRestore
from trainingjob_trainer.context import CompiledSteps, WorldContext, compile_steps, join_world
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.monitoring.bad_steps import BadStepError
from trainingjob_trainer.monitoring.control_signals import ControlSignals
from trainingjob_trainer.monitoring.evaluation import Evaluator
from trainingjob_trainer.monitoring.replica_check import ReplicaCheck
from trainingjob_trainer.monitoring.scheduling_delay import SchedulingDelayMonitor
from trainingjob_trainer.monitoring.step_reporter import StepReporter
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.restore import SnapshotRestore
from trainingjob_trainer.snapshots.snapshotter import Snapshots
from trainingjob_trainer.state import Signal, State, StepMetrics
from trainingjob_trainer.step import StepPrograms
from trainingjob_trainer.step_actions import Due, Leave, StepActions, step_actions

READY_SECONDS = 1800
"""Seconds that the first ready process waits for the last: each restores and compiles at its own speed."""
EXIT_BARRIER_SECONDS = 60
SNAPSHOT_EXCHANGE_SECONDS = 60
"""Seconds that the first process with a complete snapshot waits for the last."""


def run(start: StartWorld, events: AgentEvents, asks: ControlSignals, hear_world: Callable[[], StartWorld]) -> None:
    """Train in a world until all steps are done or the world is left, and report which.

    If `start` describes a hot standby world, `hear_world` waits for the world to train in.

    Raises:
        TrainingError: training cannot continue, for a known reason.
        Exception: training cannot continue, and the error is not classified yet.
    """
    tools = None
    if start.waits:
        party, tools, start = wait_in_hot_standby(start, events, hear_world)
    config, world, spec = start.config, start.world, start.config.spec
    root = Path(spec.checkpoint.uri)

    events.enter_phase(Phase.PREPARING)
    owner.check_writable(root)
    if start.process == 0:
        owner.claim(root, config)
        backup.claim(config)
    if tools is None:
        party = join_world(start, events)
    peers, programs, steps, indexes = party.peers, party.programs, party.steps, party.datasets
    if start.process == 0:
        events.send(AgentEvent(data=indexes.report))

    events.enter_phase(Phase.RESTORING)
    checkpoints = Checkpoints(root, config, world, peers, indexes.train.dataset_hash, events)
    snapshot_steps = spec.checkpoint.snapshots.every_steps if spec.checkpoint.snapshots else None
    max_snapshot_steps = spec.checkpoint.save.every_steps // 2 if world.snapshots_may_stretch else 0
    snapshots = Snapshots(
        start.snapshots,
        snapshot_steps or 0,
        world,
        indexes.train.dataset_hash,
        steps.state_shapes,
        party.shards,
        max_every=max_snapshot_steps,
    )
    memory_restore = SnapshotRestore(snapshots, steps.state_shapes, programs, peers) if snapshot_steps else None
    is_one = spec.checkpoint.readers == "oneReplica"
    replica = SingleReplicaRestore(steps.state_shapes, party.shards, programs, peers) if is_one else None
    state = checkpoints.restore(steps.state_shapes, memory_restore, replica)

    events.enter_phase(Phase.COMPILING)
    state = state or _initial_state(spec.checkpoint.initialize_from, steps, programs, peers, events)
    tools = tools or compile_steps(start, party)
    restored, past = checkpoints.newest, checkpoints.past
    batches = BatchLoader(
        party.layout, steps.batch_sharding, spec.training.global_batch_size, past.skipped, past.batch_sizes
    )
    peers.barrier("ready", READY_SECONDS)  # a first collective fails if a peer is 30 s late

    events.send(AgentEvent(restored=restored, tier=checkpoints.tier, unheard=past.spans[:-1]))
    snapshots.begin(checkpoints.restored_snapshot, past)
    with (
        SchedulingDelayMonitor() as stalls,
        StepReporter(
            start,
            events,
            root,
            restored=restored,
            snapshots=snapshots,
            stalls=stalls,
            skipped=past.skipped,
            sizes=past.batch_sizes,
            recent=memory_restore.metrics(checkpoints.restored_snapshot)
            if memory_restore and checkpoints.restored_snapshot
            else (),
        ) as reporter,
        NeighborCompiler(start, events, snapshots, restored=restored),
    ):
        try:
            measured: dict[str, float] | None = {}
            if tools.evaluator.is_missing(restored, checkpoints.inventory.evaluated):
                measured = evaluate(restored, state, tools.evaluator, reporter, asks)
            phase = Phase.LEFT  # without a save: an evaluation is owed for a saved step only
            if measured is not None:
                phase = train(state, tools, party, batches, checkpoints, snapshots, reporter, asks)
            if phase is Phase.DONE:
                checkpoints.wait_for_backup()
        except BadStepError:
            reporter.enter_phase(Phase.SAVING)
            checkpoints.wait()  # the next world resumes from earlier saves: all hosts report them first
            raise
    events.enter_phase(phase)
    peers.exit_barrier(EXIT_BARRIER_SECONDS)


def _initial_state(
    source: InitializeFrom | None, steps: StepPrograms, programs: CompileCache, peers: ProcessGroup, events: AgentEvents
) -> State:
    """Return the state before the first step."""
    state = steps.compile_init(programs)()
    if source is None:
        return state
    inherited = load_initial_params(source, steps.state_shapes.params, peers, state.params)
    events.send(AgentEvent(inherited=inherited.source))
    return state._replace(params=inherited.params)


def evaluate(
    step: int, state: State, evaluator: Evaluator, reporter: StepReporter, asks: ControlSignals
) -> dict[str, float] | None:  # None: it was interrupted, because a process received LEAVE
    """Measure and report the held-out losses that are due after a step."""
    reporter.enter_phase(Phase.EVALUATING)
    measured = evaluator.measure(step, state.params, lambda: asks.exit_signal, reporter.report_entry)
    if measured is not None:
        reporter.report_evaluations(step, measured)
    return measured


def check_and_snapshot(
    step: int, state: State, actions: StepActions, replicas: ReplicaCheck, snapshots: Snapshots
) -> None:
    """Compare the replicas of the state after a step, then take its snapshot, if the actions include it."""
    if actions.compare:
        replicas.check(step, state)
    if actions.snapshot:
        snapshots.take(step, state)


def _is_in_memory_everywhere(step: int, snapshots: Snapshots, peers: ProcessGroup) -> bool:
    """Return whether all hosts hold a step in memory; all of them get the same answer."""
    mine = "held" if snapshots.has_step(step) else ""
    return all(peers.exchange(f"held/{step}", mine, SNAPSHOT_EXCHANGE_SECONDS))


def train(
    state: State,
    tools: CompiledSteps,
    party: WorldContext,
    batches: BatchLoader,
    checkpoints: Checkpoints,
    snapshots: Snapshots,
    reporter: StepReporter,
    asks: ControlSignals,
) -> Phase:
    """Train from the newest step on; return DONE, or LEFT if any process of the world received LEAVE or MOVE.

    The metrics of a step are read after the next one is dispatched, so that the device never waits for the host. Where
    the device waits anyway, they are read at once: a step is reported before it is kept, because its world may end with
    it. All processes read the same metrics at the same step, so that they save, leave and fail together.

    While saves fail, a world that receives LEAVE keeps training, and leaves with the next save that succeeds. A world
    that receives MOVE leaves without a save if all processes hold the step in memory. A process that receives LEAVE may
    be killed soon, so that the save comes before an evaluation. The next world owes that evaluation, and no world is
    done before it has run.
    """
    steps, index, last = party.steps, party.datasets.train, party.steps.num_steps
    unreported: StepMetrics | None = None
    actions = StepActions()
    if checkpoints.newest >= last and not checkpoints.inventory.is_saved:  # an edit has lowered spec.training.steps
        checkpoints.save(checkpoints.newest, state)
    gc.freeze()  # existing objects stay: each collection scanned them for 0.1 s, on all hosts at the same step
    reporter.enter_phase(Phase.TRAINING)
    for step in range(checkpoints.newest + 1, last + 1):
        batch = batches.train_batch(index, step, steps.seed)
        reporter.report_entry(f"step {step}")
        sent = asks.take_signals() | checkpoints.save_signal() | snapshots.stretch_signal()
        state, metrics = tools.train_step(state, batch, steps.controls(sent))
        signals = reporter.report(step - 1, unreported) if unreported else Signal.NONE
        unreported = metrics
        checkpoints.raise_background_error()
        actions = step_actions(step, signals, _find_due(step, last, tools, checkpoints, snapshots))
        if not actions.report:
            continue
        signals |= reporter.report(step, metrics)
        unreported = None
        snapshots.apply_stretch(step, signals)
        actions = step_actions(step, signals, _find_due(step, last, tools, checkpoints, snapshots))
        actions = _finish_step(step, state, actions, tools, party.peers, checkpoints, snapshots, reporter, asks)
        if actions.leave is not Leave.NO and not checkpoints.is_failing:
            break
        reporter.enter_phase(Phase.TRAINING)
    reporter.enter_phase(Phase.SAVING)
    snapshots.wait()
    checkpoints.save_until_success(max(checkpoints.newest, last), state)
    return Phase.DONE if checkpoints.newest >= last and not actions.evaluation_missing else Phase.LEFT


def _find_due(step: int, last: int, tools: CompiledSteps, checkpoints: Checkpoints, snapshots: Snapshots) -> Due:
    return Due(
        last_step=last,
        save=checkpoints.is_due(step),
        snapshot=snapshots.is_due(step),
        evaluation=tools.evaluator.is_due(step),
        comparison=tools.replicas.is_due(step),
        saves_fail=checkpoints.is_failing,
    )


def _finish_step(
    step: int,
    state: State,
    actions: StepActions,
    tools: CompiledSteps,
    peers: ProcessGroup,
    checkpoints: Checkpoints,
    snapshots: Snapshots,
    reporter: StepReporter,
    asks: ControlSignals,
) -> StepActions:
    """Do the actions that follow a reported step; return them as they were after its evaluation."""
    losses: dict[str, float] | None = {}
    check_and_snapshot(step, state, actions, tools.replicas, snapshots)
    if actions.evaluate:
        signals = asks if actions.is_interruptible else ControlSignals()
        losses = evaluate(step, state, tools.evaluator, reporter, signals)
        if losses is None:
            actions = actions.interrupt_evaluation()
            check_and_snapshot(step, state, actions, tools.replicas, snapshots)
    save = actions.save or checkpoints.is_best(losses or {})
    if actions.leave is Leave.WITH_SNAPSHOT and not save:
        save = not _is_in_memory_everywhere(step, snapshots, peers)
    if save:
        reporter.enter_phase(Phase.SAVING)
        checkpoints.save(step, state, losses or {})
    if actions.leave is not Leave.NO:
        checkpoints.wait()
    return actions
