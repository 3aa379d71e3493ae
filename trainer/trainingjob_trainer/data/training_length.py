"""Length of a training: the steps and samples that `training.steps` or `training.epochs` stand for.

An epoch of one text reads each of its sequences once. An epoch of a mixture ends with the first source that is read
completely, so that no sequence repeats in it; `interleave_datasets` of Hugging Face and the mixtures of Grain stop
there, too. The last step takes what is left of the last epoch, and its batch is filled up with padding.

The length depends only on `training.epochs`, the sequences and the batch sizes of the history. A checkpoint carries
these batch sizes and the hash of the sequences, so that restarts, resizes and rollbacks keep the length. A rollback
excludes samples: as many of the next epoch replace them.
"""

import math
from fractions import Fraction
from typing import NamedTuple

from trainingjob_api.problem import Problem
from trainingjob_api.protocol import FailureReason
from trainingjob_api.schedule_fit import check_epochs
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.training import MAX_STEP, BatchSizes, Training
from trainingjob_trainer.data.mixture import Mixture, TrainingText
from trainingjob_trainer.data.sample_history import SampleHistory
from trainingjob_trainer.data.sampler import count_samples, count_steps
from trainingjob_trainer.runtime.errors import TrainingError

EPOCHS = "spec.training.epochs"


class TrainingLength(NamedTuple):
    """Length of a training whose samples are numbered from 0, without those that rollbacks exclude."""

    steps: int
    samples: int
    last_batch: int
    """Number of samples of the last step."""


def find_training_length(text: TrainingText, training: Training, sizes: BatchSizes) -> TrainingLength:
    """Return the length of the training of a text. `sizes` are the batch sizes of the job's history.

    Raises:
        TrainingError: the epochs have more steps than a job may have.
    """
    steps = training.steps
    samples = _count_epochs(text, Fraction(str(training.epochs)), sizes) if steps is None else 0
    if steps is None:
        steps = count_steps(samples, sizes)
        if steps > MAX_STEP:
            raise _too_many_steps(training, steps)
    else:
        samples = count_samples(steps, sizes)
    return TrainingLength(steps, samples, samples - count_samples(steps - 1, sizes))


def resolve_epochs(spec: TrainingJobSpec, steps: int) -> TrainingJobSpec:
    """Return a spec with the number of steps that its `training.epochs` has.

    Raises:
        TrainingError: a length of the learning-rate schedule does not fit into so many steps.
    """
    if spec.training.epochs is None:
        return spec
    for problem in check_epochs(spec, steps):
        raise _misfit(problem)
    return spec.model_copy(update={"training": spec.training.model_copy(update={"steps": steps, "epochs": None})})


def _count_epochs(text: TrainingText, epochs: Fraction, sizes: BatchSizes) -> int:
    """Return the number of samples of some epochs, rounded up."""
    if not isinstance(text, Mixture):
        return math.ceil(epochs * text.num_sequences)
    num_sequences = {
        name: math.ceil(epochs * dataset.num_sequences) for name, dataset in zip(text.names, text.datasets, strict=True)
    }
    fewest, most = 0, sum(num_sequences.values())  # with so many samples, a source has all of its epochs
    while most - fewest > 1:
        middle = (fewest + most) // 2
        counts = text.count_by_source(middle, SampleHistory(sizes))
        is_enough = any(counts[name] >= number for name, number in num_sequences.items())
        fewest, most = (fewest, middle) if is_enough else (middle, most)
    return most


def _too_many_steps(training: Training, steps: int) -> TrainingError:
    epochs = training.epochs or 0.0
    nearest = math.floor(epochs * MAX_STEP / steps * 100) / 100
    text = f" Nearest legal value: {nearest:g}." if nearest else ""
    message = f"must have at most {MAX_STEP:,} steps, but the text has {steps:,} in {epochs:g} epochs.{text}"
    return TrainingError(FailureReason.CONFIG, message, path=EPOCHS, value=epochs)


def _misfit(problem: Problem) -> TrainingError:
    nearest = f" Nearest legal value: {problem.nearest[0]}." if problem.nearest else ""
    message = f"{problem.message}{nearest}"
    return TrainingError(FailureReason.CONFIG, message, path=problem.path, value=problem.value)
