"""The training section: steps, batch size and sequence length."""

from collections.abc import Mapping
from math import inf
from typing import Annotated

from pydantic import Field

from trainingjob_api.base import ShortName, Strict
from trainingjob_api.meta import NO_UNIT, Example, Live, Unit, cel_rule

MAX_STEP = 100_000_000
MAX_EPOCHS = 100_000
MAX_BATCH_PHASES = 64
MAX_BATCH_SIZE = 1_048_576
GlobalBatchSize = Annotated[int, Field(ge=1, le=MAX_BATCH_SIZE), Unit("sequences an optimizer step"), Example(16)]
type BatchSizes = tuple[tuple[int, int], ...]
"""Global batch sizes: the first step of each size, and the size. Ascending; the first entry begins at step 1."""


class BatchPhase(Strict):
    """Global batch size from a step on."""

    from_step: Annotated[int, Field(ge=2, le=MAX_STEP), Unit("optimizer steps"), Example(1000)] = Field(
        description="First step with this batch size."
    )
    global_batch_size: GlobalBatchSize = Field(description="Number of sequences in an optimizer step from then on.")


class StopAtLoss(Strict):
    """Loss on a held-out text at which training ends."""

    evaluation: Annotated[ShortName, Example("held-out")] = Field(
        description="Name of the evaluation whose loss is compared."
    )
    loss: Annotated[float, Field(gt=0, le=1000), Unit("nats a token"), Example(2.5)] = Field(
        description="Loss of the evaluation at or below which training ends."
    )

    def is_reached(self, losses: Mapping[str, float]) -> bool:
        """Return whether evaluations with these losses, by name, end training."""
        return losses.get(self.evaluation, inf) <= self.loss


class Training(Strict):
    """Training length, batch size and sequence length. They do not depend on the number of slices."""

    steps: Annotated[
        Annotated[int, Field(ge=1, le=MAX_STEP)] | None, Unit("optimizer steps"), Example(1000), Live(in_world=True)
    ] = Field(
        default=None, description="Number of optimizer steps after which the job succeeds. Unset: `epochs` decides."
    )
    epochs: Annotated[
        Annotated[float, Field(gt=0, le=MAX_EPOCHS)] | None, Unit("epochs"), Example(2.0), Live(in_world=True)
    ] = Field(
        default=None,
        description="Number of times that training reads its text, instead of `steps`. An epoch of a mixture ends "
        "with the first source that is read completely.",
        exclude_if=lambda epochs: epochs is None,  # an agent before 0.1 refuses a field that it does not know
    )
    global_batch_size: GlobalBatchSize = Field(
        description="Number of sequences in an optimizer step, the same at every number of slices. With "
        "`objective.type: dpo` it counts pairs."
    )
    batch_schedule: tuple[BatchPhase, ...] = Field(
        default=(),
        max_length=MAX_BATCH_PHASES,
        description="Larger batch sizes from later steps on. `globalBatchSize` holds until the first of them.",
        exclude_if=lambda phases: not phases,  # an agent before 0.1 refuses a field it does not know
    )
    sequence_length: Annotated[int, Field(ge=2, le=1_048_576), Unit("tokens"), Example(128)] = Field(
        description="Number of tokens in a sequence. Each row of a batch is one sequence."
    )
    seed: Annotated[int, Field(ge=0, le=2_147_483_647), NO_UNIT, Example(0)] = Field(
        default=0, description="Seed of the initial parameters and of the data order."
    )
    stop_at_loss: Annotated[StopAtLoss | None, Live(in_world=True)] = Field(
        default=None,
        description="Evaluation loss at which the job saves the step and succeeds. Unset: it trains all steps.",
        exclude_if=lambda stop: stop is None,  # an agent before 0.1 refuses a field that it does not know
    )
    max_per_device_batch: Annotated[
        Annotated[int, Field(ge=1, le=65536)] | None, Unit("sequences a device"), Example(8)
    ] = Field(
        default=None,
        description="Maximum number of sequences, or of pairs, on a device at once; gradient accumulation handles the "
        "rest. Unset: as many as the memory estimate allows.",
    )

    cel_rules = (cel_rule("has(self.steps) != has(self.epochs)", "must have exactly one of `steps` and `epochs`."),)

    @property
    def step_limit(self) -> int:
        """Return the number of steps. Unless the trainer has resolved `epochs`, return the largest possible number."""
        return self.steps or MAX_STEP

    @property
    def batch_sizes(self) -> BatchSizes:
        """Return all global batch sizes in the order of the steps."""
        return (
            (1, self.global_batch_size),
            *((change.from_step, change.global_batch_size) for change in self.batch_schedule),
        )

    @property
    def largest_batch(self) -> int:
        """Return the largest global batch size, for which memory and mesh are planned."""
        return max(size for _, size in self.batch_sizes)

    @property
    def smaller_batches(self) -> tuple[int, ...]:
        """Return the other global batch sizes, ascending."""
        return tuple(sorted({size for _, size in self.batch_sizes} - {self.largest_batch}))
