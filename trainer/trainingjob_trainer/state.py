"""Types of the step programs' arguments and results: state, batch, controls and metrics.

Shapes: A gradient-accumulation steps, M microbatches, R sequences, L length.
"""

from collections.abc import Callable, Mapping
from enum import Enum, IntFlag
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.divergence import StoredShares
from trainingjob_trainer.optim.slot_paths import Slots
from trainingjob_trainer.optim.spike_detection import SpikeWindow


class State(NamedTuple):
    """Everything that training carries from step to step, and that a checkpoint holds."""

    step: jax.Array
    """Number of finished steps, int32."""
    params: Params
    opt: Any
    non_finite: jax.Array
    """Consecutive steps up to now whose update was skipped because loss or gradients were not finite."""
    skipped: jax.Array
    """Total number of skipped updates."""
    window: SpikeWindow | None = None
    """Statistics for spike detection. None: the spec configures none."""
    average: Params | None = None
    """Moving average of the trained parameters, float32. None: the spec configures none."""
    reference: Params | None = None
    """The trained parameters before the first step, which the loss compares with. None: the objective needs none."""
    teacher: jax.Array | None = None
    """Hash of the teacher's parameters, uint32; 0: it is not known yet. None: the objective has no teacher."""
    outer_params: Params | None = None
    """Outer parameters of replicas, float32, in host memory. None: a state on the devices, or no replicas."""
    outer_momentum: Params | None = None
    """Momentum of the outer optimizer, likewise."""
    outer_base: jax.Array | None = None
    """The base of the next round of replicas, uint32 [8], likewise. Zeros: no round has ended."""

    @property
    def slots(self) -> Slots:
        """Return the items that an update of the parameters reads and writes."""
        return Slots(self.opt, self.average)


class ItemRule(Enum):
    """What a restore does with an item of the state that a checkpoint lacks, or holds with other shapes."""

    REQUIRED = "required"
    """The checkpoint cannot be restored."""
    ZEROS = "zeros"
    """The item starts with zeros. A checkpoint may hold it although the state has none: it is ignored."""
    PARAMS = "params"
    """The item starts as a copy of the parameters of the same names. It is ignored in the same way."""


STATE_LAYOUT = 1
"""Version of the state's layout. It changes with the meaning of a required item, not with another optional item."""
FROZEN_LAYOUT = 2
"""The same in a step that refers to frozen tensors in another folder: trainers that know layout 1 alone reject it."""
ITEM_RULES: Mapping[str, ItemRule] = {
    "step": ItemRule.REQUIRED,
    "params": ItemRule.REQUIRED,
    "opt": ItemRule.REQUIRED,
    "non_finite": ItemRule.ZEROS,
    "skipped": ItemRule.ZEROS,
    "window": ItemRule.ZEROS,
    "average": ItemRule.PARAMS,
    "reference": ItemRule.PARAMS,
    "teacher": ItemRule.ZEROS,
    "outer_params": ItemRule.PARAMS,
    "outer_momentum": ItemRule.ZEROS,
    "outer_base": ItemRule.ZEROS,
}
"""The rule of each item of `State`."""


class Batch(NamedTuple):
    """Sequences of one step, or of one of its gradient-accumulation steps, then without the dim A."""

    tokens: jax.Array
    """Input tokens, int32 [A, M, R, L]."""
    targets: jax.Array
    """The token to predict at each position, int32 [A, M, R, L]."""
    loss_weights: jax.Array
    """Weight of each prediction in the loss, float32 [A, M, R, L]; 0 for padding."""
    segment_ids: jax.Array | None = None
    """Document of each token, int32 [A, M, R, L]: a token attends to its own document. None: one in each sequence."""
    positions: jax.Array | None = None
    """Position of each token in its document, int32 [A, M, R, L]. None: its position in the sequence."""
    seeds: jax.Array | None = None
    """Seed of each sequence's dropout, uint32 [A, M, R]. None: nothing is dropped."""
    target_bytes: jax.Array | None = None
    """Bytes of text of each target, int32 [A, M, R, L]; 0 if unknown. None: a batch of training."""
    reference_log_probs: jax.Array | None = None
    """Log-probability of each sequence's answer in the reference model, float32 [A, M, R]. None: there is none."""
    taught: jax.Array | None = None
    """Hidden states of the teacher after its last layer [M, R, L, D], in one gradient-accumulation step alone, with the
    tokens in the order of the mesh. None: there is no teacher."""
    taught_layers: jax.Array | None = None
    """Outputs of the teacher's layers that the student imitates [M, R, N, L, D], likewise. None: there are none."""
    stored: StoredShares | None = None
    """Stored probabilities of a teacher for each target [A, M, R, L]. None: the objective reads none."""


class Signal(IntFlag):
    """Control signals of a process to all processes: sent with a step, and returned to all with the step's metrics."""

    NONE = 0
    EXIT = 1
    """Save at this step boundary and leave the world."""
    SAVE = 2
    """Save at this step boundary, because a save is due."""
    INJECT_NAN = 4
    """Fault injection: make the gradients of this step non-finite. Never sent if the spec forbids drills."""
    RESCALE = 8
    """Leave the world at this step boundary, without a save of a step that all hosts hold in memory."""
    STRETCH_SNAPSHOTS = 16
    """Take snapshots less often: they cost more than they are worth."""


def combine_signals(signals: jax.Array) -> jax.Array:
    """Return each bit that the signals of any device [devices] contain, int32 [bits of `Signal`]."""
    bits_B = jnp.asarray([int(signal) for signal in Signal], jnp.int32)
    return jnp.max(signals[:, None] & bits_B[None, :], axis=0)


class Controls(NamedTuple):
    """Inputs that control a step without changing its program."""

    signals: jax.Array  # int32 [devices]
    """Control signals of the process of each device, as `Signal`."""
    num_steps: jax.Array
    """Total number of steps, int32; an edit of the spec may change it during training."""
    teacher: Params | None = None
    """The parameters of the teacher, which no step changes. None: the objective has no teacher."""


class StepMetrics(NamedTuple):
    """Step metrics: replicated scalars."""

    loss: jax.Array
    grad_norm: jax.Array
    learning_rate: jax.Array
    non_finite: jax.Array
    skipped: jax.Array
    signals: jax.Array
    """Control signals that any process sent with this step, as `Signal`."""
    objective: dict[str, jax.Array]
    """The objective's own metrics, by name."""
    spikes: jax.Array | None = None
    """Consecutive spikes up to this step; 0: this step is none. None: the spec configures no spike detection."""
    norms: dict[str, jax.Array] | None = None
    """Norms by kind and tensor, such as `grad_norm/embedding`. None: this step computes none."""


type BatchShape = tuple[int, int, int]
"""Gradient-accumulation steps, microbatches of each, and sequences of each microbatch."""
type TrainStep = Callable[[State, Batch, Controls], tuple[State, StepMetrics]]
