"""The committed history of a job: the saved steps from which a world may resume.

The operator's lineage records which generation trained which steps. The operator learns of a generation from the
reports of its hosts. A generation may be missing: operator and hosts were lost together after a save, before the
operator recorded it. The steps of such a generation count too, up to the first step of the next recorded generation.
That generation resumed from the newest step that it found. Earlier steps of the missing generation are part of its
history, and later ones are void.

A rollback voids the steps after its parent step, of its generation and of earlier ones, as soon as it is recorded. It
also excludes samples. A step carries the samples that were excluded before it, and the phases of weights in which they
lay. It also carries the batch sizes of the steps up to it and of those planned after it. A job that resumes from the
step therefore trains on no sample twice, under any name and with any batch size. A step also carries the steps that its
own generation trained, and earlier generations that were in no lineage. The world that resumes from the step reports
them to the operator, which completes the lineage.
"""

from collections.abc import Sequence

from trainingjob_api.base import Open
from trainingjob_api.protocol import MAX_MISSING_LINEAGE
from trainingjob_api.spec.training import BatchSizes
from trainingjob_api.world import STORAGE_TIERS, Span, Tier, World
from trainingjob_trainer.data.sample_history import ONE_PHASE, PhaseRuns, SampleHistory
from trainingjob_trainer.data.sampler import ExcludedSamples, continue_batch_sizes


class Provenance(Open):
    """Provenance of a state: excluded samples, batch sizes, runs of phases, and the generations that trained it.

    Without batch sizes, as older trainers saved it, all steps had the batch size of the job. The last of `spans` is the
    newest generation, still open. Those before it were missing from the lineage that the newest one was given.
    """

    skipped: ExcludedSamples = ()
    batch_sizes: BatchSizes = ()
    phase_runs: PhaseRuns = ()
    spans: tuple[Span, ...] = ()

    @property
    def history(self) -> SampleHistory:
        """Return what decides the samples of each step."""
        return SampleHistory(self.batch_sizes, self.skipped, self.phase_runs)


class StepRecord(Provenance):
    """Metadata of a saved or in-memory step: job, generation, lineage, and hashes of the data and the state's shapes.

    `seed` is the seed of the sample order. None: an older trainer kept the step, or a host kept it in memory.
    """

    job_uid: str
    generation: int
    step: int
    data: str
    state: str
    seed: int | None = None
    lineage: int = 0

    @property
    def provenance(self) -> Provenance:
        """Return the provenance of the step."""
        return Provenance(**{name: getattr(self, name) for name in Provenance.model_fields})


def is_in_history(record: StepRecord, world: World, *, takeover: bool, is_replica: bool = False) -> bool:
    """Return whether a saved or in-memory step is part of the history from which a world resumes.

    Replicas have one history, whichever of them saves: only a rollback voids steps.
    """
    step, generation = record.step, record.generation
    if record.job_uid != world.job_uid:
        foreign_restore_point = any(step == span.first - 1 and span.tier in STORAGE_TIERS for span in world.lineage)
        return takeover and (not world.lineage or foreign_restore_point)
    if any(generation <= rollback.generation and step > rollback.parent for rollback in world.rollbacks):
        return False
    if is_replica:
        return True
    if own := next((span for span in world.lineage if span.generation == generation), None):
        return own.first <= step and (own.last is None or step <= own.last)
    later = (span.first for span in world.lineage if span.generation > generation)
    return generation < world.generation and all(step < first for first in later)


def has_known_lineage(record: StepRecord, world: World) -> bool:
    """Return whether the rollbacks before a step of this job are those that the world knows.

    A step of another job always passes.
    """
    before = sum(rollback.generation < record.generation for rollback in world.rollbacks)
    return record.job_uid != world.job_uid or record.lineage == before


def _missing_from_lineage(spans: Sequence[Span], world: World) -> tuple[Span, ...]:
    """Return the newest `MAX_MISSING_LINEAGE` of the spans that the lineage of a world lacks."""
    known_generations = {span.generation for span in world.lineage}
    return tuple(span for span in spans if span.generation not in known_generations)[-MAX_MISSING_LINEAGE:]


def extend_provenance(
    past: Provenance,
    world: World,
    planned: BatchSizes,
    resumed_generation: int,
    step: int,
    tier: Tier,
    first_steps: tuple[int, ...] = ONE_PHASE,
) -> Provenance:
    """Return the provenance of the steps that a world trains after `step`, with the batch sizes that a spec plans.

    `past` is the provenance of `step` itself, and `tier` is the storage that held it. `resumed_generation` is the
    generation from which the world resumes; 0: it starts from scratch, or from another job's step. `first_steps` are
    those of the phases of weights.
    """
    history = past.history._replace(sizes=continue_batch_sizes(past.batch_sizes, step, planned))
    for rollback in world.rollbacks:
        if rollback.generation >= resumed_generation:
            history = history.exclude(rollback.parent, rollback.step, first_steps)
    own = Span(generation=world.generation, first=step + 1, tier=tier)
    return Provenance(
        skipped=history.skipped,
        batch_sizes=history.sizes,
        phase_runs=history.phase_runs,
        spans=(*(_missing_from_lineage(past.spans, world) if resumed_generation else ()), own),
    )
