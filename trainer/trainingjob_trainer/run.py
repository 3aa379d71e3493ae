"""Train in one world: set up, restore, compile, loop.

In a hot standby world, the programs are compiled before the state is restored: the process waits there for the world
that it will train in.
"""

import gc
from collections.abc import Callable
from pathlib import Path

from trainingjob_api.protocol import Phase
from trainingjob_api.running import InitializeFrom
from trainingjob_trainer.ahead.neighbours import Neighbours
from trainingjob_trainer.asks import Asks
from trainingjob_trainer.evaluate import Evaluator
from trainingjob_trainer.events import Events
from trainingjob_trainer.feeding.batches import Batches
from trainingjob_trainer.joining import Party, Tools, equip, join
from trainingjob_trainer.modelling.signature import Asked, Measures, State
from trainingjob_trainer.modelling.step import Steps
from trainingjob_trainer.programs import Programs
from trainingjob_trainer.protection import BadStepError
from trainingjob_trainer.remembering.recall import Recall
from trainingjob_trainer.remembering.snapshots import Snapshots
from trainingjob_trainer.replicas import Replicas
from trainingjob_trainer.reporter import Reporter
from trainingjob_trainer.saving import backup, owner
from trainingjob_trainer.saving.checkpoints import Checkpoints
from trainingjob_trainer.saving.inherit import inherit
from trainingjob_trainer.saving.one_replica import OneReplica
from trainingjob_trainer.shadow import wait
from trainingjob_trainer.stalls import Stalls
from trainingjob_trainer.wire import Event, Start
from trainingjob_trainer.world import Peers

READY_SECONDS = 1800
"""Seconds that the first ready process waits for the last: each restores and compiles at its own speed."""
LEAVE_SECONDS = 60
HELD_SECONDS = 60
"""Seconds that the first process with a complete snapshot waits for the last."""


def run(start: Start, events: Events, asks: Asks, hear_world: Callable[[], Start]) -> None:
    """Train in a world until all steps are done or the world is left, and report which.

    If `start` describes a hot standby world, `hear_world` waits for the world to train in.

    Raises:
        TrainingError: training cannot continue, for a known reason.
        Exception: training cannot continue, and the error is not classified yet.
    """
    tools = None
    if start.waits:
        party, tools, start = wait(start, events, hear_world)
    config, world, spec = start.config, start.world, start.config.spec
    root = Path(spec.checkpoint.uri)

    events.enter(Phase.PREPARING)
    owner.check_writable(root)
    if start.process == 0:
        owner.claim(root, config)
        backup.claim(config)
    if tools is None:
        party = join(start, events)
    peers, programs, steps, indexes = party.peers, party.programs, party.steps, party.indexes
    if start.process == 0:
        events.send(Event(data=indexes.report))

    events.enter(Phase.RESTORING)
    checkpoints = Checkpoints(root, config, world, peers, indexes.train.identity, events)
    every = spec.checkpoint.snapshots.every_steps if spec.checkpoint.snapshots else None
    most = spec.checkpoint.save.every_steps // 2 if world.snapshots_may_stretch else 0
    snapshots = Snapshots(
        start.snapshots, every or 0, world, indexes.train.identity, steps.state, party.shards, most=most
    )
    memory = Recall(snapshots, steps.state, programs, peers) if every else None
    is_one = spec.checkpoint.readers == "oneReplica"
    replica = OneReplica(steps.state, party.shards, programs, peers) if is_one else None
    state = checkpoints.restore(steps.state, memory, replica)

    events.enter(Phase.COMPILING)
    state = state or _begin(spec.checkpoint.initialize_from, steps, programs, peers, events)
    tools = tools or equip(start, party)
    restored, past = checkpoints.newest, checkpoints.past
    batches = Batches(party.layout, steps.rows, spec.training.global_batch_size, past.skipped, past.batch_sizes)
    peers.wait("ready", READY_SECONDS)  # a first collective fails if a peer is 30 s late

    events.send(Event(restored=restored, tier=checkpoints.tier, unheard=past.spans[:-1]))
    snapshots.begin(checkpoints.recalled, past)
    with (
        Stalls() as stalls,
        Reporter(
            start,
            events,
            root,
            restored=restored,
            snapshots=snapshots,
            stalls=stalls,
            skipped=past.skipped,
            sizes=past.batch_sizes,
            recent=memory.metrics(checkpoints.recalled) if memory and checkpoints.recalled else (),
        ) as reporter,
        Neighbours(start, events, snapshots, restored=restored),
    ):
        try:
            measured: dict[str, float] | None = {}
            if tools.evaluator.is_owed(restored, checkpoints.inventory.evaluated):
                measured = evaluate(restored, state, tools.evaluator, reporter, asks)
            phase = Phase.LEFT  # without a save: an evaluation is owed for a saved step only
            if measured is not None:
                phase = train(state, tools, party, batches, checkpoints, snapshots, reporter, asks)
            if phase is Phase.DONE:
                checkpoints.finish_copy()
        except BadStepError:
            reporter.resume(Phase.SAVING)
            checkpoints.wait()  # the next world resumes from earlier saves: all hosts report them first
            raise
    events.enter(phase)
    peers.part(LEAVE_SECONDS)


def _begin(source: InitializeFrom | None, steps: Steps, programs: Programs, peers: Peers, events: Events) -> State:
    """Return the state before the first step."""
    state = steps.compile_init(programs)()
    if source is None:
        return state
    inherited = inherit(source, steps.state.params, peers, state.params)
    events.send(Event(inherited=inherited.source))
    return state._replace(params=inherited.params)


def evaluate(
    step: int, state: State, evaluator: Evaluator, reporter: Reporter, asks: Asks
) -> dict[str, float] | None:  # None: it was interrupted, because a process received LEAVE
    """Measure and report the held-out losses that are due after a step."""
    reporter.resume(Phase.EVALUATING)
    measured = evaluator.measure(step, state.params, lambda: asks.leaving, reporter.begin)
    if measured is not None:
        reporter.report_evaluations(step, measured)
    return measured


def keep(step: int, state: State, replicas: Replicas, snapshots: Snapshots, *, save: bool, leaving: bool) -> None:
    """Keep a step in memory if that is due. Compare the replicas of a state that is kept or about to be saved."""
    in_memory = leaving or snapshots.is_due(step)  # the next world then resumes without reading storage
    replicas.check(step, state, is_kept=in_memory or save)
    if in_memory:
        snapshots.take(step, state)


def _is_held(step: int, snapshots: Snapshots, peers: Peers) -> bool:
    """Return whether all hosts hold a step in memory; all of them get the same answer."""
    mine = "held" if snapshots.keeps(step) else ""
    return all(peers.exchange(f"held/{step}", mine, HELD_SECONDS))


def train(
    state: State,
    tools: Tools,
    party: Party,
    batches: Batches,
    checkpoints: Checkpoints,
    snapshots: Snapshots,
    reporter: Reporter,
    asks: Asks,
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
    train_step, evaluator, replicas = tools
    steps, index, last = party.steps, party.indexes.train, party.steps.last
    pending: Measures | None = None
    is_owed = False
    if checkpoints.newest >= last and not checkpoints.inventory.is_saved:  # an edit has lowered spec.training.steps
        checkpoints.save(checkpoints.newest, state)
    gc.freeze()  # existing objects stay: each collection scanned them for 0.1 s, on all hosts at the same step
    reporter.resume(Phase.TRAINING)
    for step in range(checkpoints.newest + 1, last + 1):
        batch = batches.train(index, step, steps.seed)
        reporter.begin(f"step {step}")
        state, measures = train_step(state, batch, steps.controls(asks.take() | checkpoints.ask() | snapshots.ask()))
        asked = reporter.report(step - 1, pending) if pending else Asked.NOTHING
        pending = measures
        checkpoints.check()
        save = step == last or checkpoints.is_due(step) or Asked.SAVE in asked
        if asked or save or snapshots.is_due(step) or evaluator.is_due(step) or replicas.is_due(step):
            asked |= reporter.report(step, pending)
            pending = None
        snapshots.heed(step, asked)
        save |= Asked.SAVE in asked
        leaving = bool(asked & (Asked.LEAVE | Asked.MOVE)) and (save or not checkpoints.is_failing)
        keep(step, state, replicas, snapshots, save=save, leaving=leaving)
        measured: dict[str, float] | None = {}
        if evaluator.is_due(step):
            in_haste = leaving and Asked.LEAVE in asked
            heard = asks if not checkpoints.is_failing else Asks()
            measured = None if in_haste else evaluate(step, state, evaluator, reporter, heard)
        is_owed = measured is None
        if is_owed and not leaving and not snapshots.is_due(step):
            keep(step, state, replicas, snapshots, save=True, leaving=True)
        is_held = leaving and not is_owed and Asked.LEAVE not in asked and _is_held(step, snapshots, party.peers)
        leaving |= is_owed
        if save or checkpoints.is_best(measured or {}) or (leaving and not is_held):
            reporter.resume(Phase.SAVING)
            checkpoints.save(step, state, measured or {})
        if leaving:
            checkpoints.wait()
            if not checkpoints.is_failing:
                break
        if pending is None:
            reporter.resume(Phase.TRAINING)
    reporter.resume(Phase.SAVING)
    snapshots.wait()
    checkpoints.insist(max(checkpoints.newest, last), state)
    return Phase.DONE if checkpoints.newest >= last and not is_owed else Phase.LEFT
