"""The state that a world resumes from: found, verified, loaded, with its past and the inventory of checkpoints."""

from collections.abc import Mapping
from typing import NamedTuple

from trainingjob_api.network.fingerprint import describe_model, fingerprint_function
from trainingjob_api.world import RunConfig, Tier, World
from trainingjob_trainer.checkpoint.candidates import Expected, Stores
from trainingjob_trainer.checkpoint.checkpoint_inventory import CheckpointInventory
from trainingjob_trainer.checkpoint.formats.orbax_writer import OrbaxWriter
from trainingjob_trainer.checkpoint.frozen_tensors import find_array_folders
from trainingjob_trainer.checkpoint.items import StateShapes, complete_state, find_restorable, select
from trainingjob_trainer.checkpoint.manifest import Integrity, SavedFrozen, SavedLora, read_integrity
from trainingjob_trainer.checkpoint.restore_search import RestoredSnapshot, RestoreSearch, SnapshotSource
from trainingjob_trainer.checkpoint.single_replica import SingleReplicaRestore
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import storage_error
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.lineage import Provenance, extend_provenance
from trainingjob_trainer.snapshots.snapshot_files import Key
from trainingjob_trainer.snapshots.state_shards import hash_shapes
from trainingjob_trainer.state import STATE_LAYOUT, State


class RunningJob(NamedTuple):
    """A job as one process of one world runs it. `data` is the hash of the token cache.

    `slice_number` is that of a replica. None: the world trains the whole job.
    """

    config: RunConfig
    world: World
    stores: Stores
    peers: ProcessGroup
    data: str
    events: AgentEvents
    slice_number: int | None = None

    def new_record(
        self, step: int, shapes: StateShapes, past: Provenance, evaluations: Mapping[str, float]
    ) -> Integrity:
        """Return the record of a step that this world saves, without file hashes."""
        lora = self.config.spec.lora
        return Integrity(
            job_uid=self.world.job_uid,
            generation=self.world.generation,
            step=step,
            data=self.data,
            state=shapes.whole,
            layout=STATE_LAYOUT,
            network=fingerprint_function(self.config.spec.model),
            model=describe_model(self.config.spec.model),
            lora=SavedLora(rank=lora.rank, alpha=lora.alpha) if lora else None,
            items=shapes.items,
            lineage=len(self.world.rollbacks),
            seed=self.config.spec.training.seed,
            evaluations=dict(evaluations),
            files={},
            **dict(past),
        )


class RestoredState(NamedTuple):
    """What a world resumes from.

    `tier` is `durable` also for a start from scratch. `snapshot` None: a checkpoint was restored, or nothing. `past` is
    the past of every state that this world saves. `inventory` has the checkpoints that existed. `frozen` refers to
    the frozen tensors of the state in the checkpoint folder; None: they are not saved there.
    """

    state: State | None = None  # None: start from scratch
    step: int = 0
    tier: Tier = "durable"
    snapshot: Key | None = None
    past: Provenance = Provenance()
    inventory: CheckpointInventory = CheckpointInventory()
    frozen: SavedFrozen | None = None
    is_frozen_verified: bool = False

    @property
    def checkpoint_step(self) -> int:
        """Return the step of the checkpoint that was restored; 0: none was."""
        return 0 if self.snapshot else self.step


def restore_newest(
    job: RunningJob, state: State, memory: SnapshotSource | None = None, replica: SingleReplicaRestore | None = None
) -> RestoredState:
    """Return the newest intact state of the job's history, from storage or memory, with the layout of `state`.

    `replica` restores a checkpoint by broadcast from one replica. None: all processes read.

    Raises:
        TrainingError: checkpoints exist, and none can be used.
    """
    replica = replica if replica and replica.saves_reads else None
    stores, takeover, readers = job.stores, job.config.spec.checkpoint.takeover, replica.readers if replica else None
    search = RestoreSearch(
        stores,
        job.world,
        job.peers,
        job.events,
        memory,
        takeover=takeover,
        readers=readers,
        slice_number=job.slice_number,
    )

    def fits(saved: Integrity) -> bool:
        return find_restorable(state, saved) is not None

    try:
        found = search.find(Expected(job.data, fits, job.config.spec.training.seed, job.config.spec.model))
    except OSError as error:
        raise storage_error(error, f"reading {stores.durable.root}", stores.durable.root) from error
    if found is None:
        return RestoredState(past=_extend(job, Provenance(), 0, 0, "durable"))
    if isinstance(found, RestoredSnapshot):
        generation, step = found.key
        past = _extend(job, found.past, generation, step, "ram")
        inventory = _take_inventory(job, search, (job.world.job_uid, generation, step))
        return RestoredState(found.state, step, "ram", found.key, past, inventory, inventory.frozen)
    saved = read_integrity(found)
    assert saved is not None  # noqa: S101  # it was verified above
    tier: Tier = "backup" if stores.is_copy(found) else "durable"
    inventory = _take_inventory(job, search, (saved.job_uid, saved.generation, saved.step))
    since = saved.generation if saved.job_uid == job.world.job_uid else 0
    past = _extend(job, saved.provenance, since, saved.step, tier)
    is_verified = saved.frozen is not None and tier == "durable"
    return RestoredState(
        _load(job.peers, found, saved, state, replica),
        saved.step,
        tier,
        None,
        past,
        inventory,
        saved.frozen if is_verified else inventory.frozen,
        is_verified,
    )


def _take_inventory(job: RunningJob, search: RestoreSearch, origin: tuple[str, int, int]) -> CheckpointInventory:
    best = job.config.spec.checkpoint.keep.best
    return CheckpointInventory.from_manifests(search.saved, origin, best).broadcast(job.peers)


def _extend(job: RunningJob, past: Provenance, since: int, step: int, tier: Tier) -> Provenance:
    spec = job.config.spec
    return extend_provenance(past, job.world, spec.training.batch_sizes, since, step, tier, spec.data.phase_steps)


def _load(
    peers: ProcessGroup, folder: StepFolder, saved: Integrity, state: State, replica: SingleReplicaRestore | None
) -> State:
    folders = find_array_folders(folder, saved)
    if replica and saved.state == hash_shapes(state):
        return replica.load(folders)
    names = find_restorable(state, saved) or frozenset()
    return complete_state(folders.read(select(state, names), OrbaxWriter(peers).restore), state)
