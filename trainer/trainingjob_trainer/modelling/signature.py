"""What programs take and return: the state that a step carries on, a batch, what steers a step, what it measures.

Shapes: A microsteps, M microbatches, R rows, L length.
"""

from collections.abc import Callable
from enum import IntFlag
from typing import Any, NamedTuple

import jax

from trainingjob_trainer.modelling.model import Params
from trainingjob_trainer.modelling.spikes import Window


class State(NamedTuple):
    """All that training carries from step to step, and all that a checkpoint holds."""

    step: jax.Array
    """Finished steps, int32."""
    params: Params
    opt: Any
    non_finite: jax.Array
    """Steps in a row, up to now, whose update was skipped because loss or gradients were not finite."""
    skipped: jax.Array
    """Skipped updates in all."""
    window: Window | None = None
    """What tells a spike. None: the spec looks for none."""


class Batch(NamedTuple):
    """Rows of one step. A row has one token more than it has predictions; padding rows weigh 0."""

    tokens: jax.Array  # int32 [A, M, R, L + 1]
    weights: jax.Array  # float32 [A, M, R]


class Asked(IntFlag):
    """What a process asks of all of them: each says it with its step, and all hear it with the step's measures."""

    NOTHING = 0
    LEAVE = 1
    """Save at this step boundary, and leave the world."""
    SAVE = 2
    """Save at this step boundary: it is time."""
    POISON = 4
    """Let the gradients of this step not be finite: a drill. Nobody asks for it where the spec refuses drills."""
    MOVE = 8
    """Leave the world at this step boundary; what all hosts keep in memory need not be saved first."""
    STRETCH = 16
    """Let more steps lie between two snapshots: they cost more than they are worth."""


class Controls(NamedTuple):
    """What steers a step and does not shape its program: that one serves on when any of it changes."""

    asked: jax.Array  # int32 [devices]
    """What the process of each device asks for, as `Asked`."""
    last: jax.Array
    """The number of steps in all, int32; an edit may change it in mid-training."""


class Measures(NamedTuple):
    """What a step says about itself; scalars, the same on every process."""

    loss: jax.Array
    grad_norm: jax.Array
    learning_rate: jax.Array
    non_finite: jax.Array
    skipped: jax.Array
    asked: jax.Array
    """What any process asked for with this step, as `Asked`."""
    load_balance: jax.Array | None = None
    """Load-balancing loss a layer: 1 where experts get equally many tokens. None: there are no experts."""
    dropped: jax.Array | None = None
    """Share of the routers' choices that found no place. None: there are no experts."""
    spikes: jax.Array | None = None
    """Spikes in a row, up to this step; 0: it is none. None: the spec looks for none."""


type BatchShape = tuple[int, int, int]
"""Microsteps, microbatches of each, and rows of these."""
type TrainStep = Callable[[State, Batch, Controls], tuple[State, Measures]]
type EvaluateStep = Callable[[Params, Batch, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
