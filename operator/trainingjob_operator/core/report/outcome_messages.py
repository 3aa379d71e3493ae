"""Messages about the outcome of training: why a job succeeded, how to start a failed one again, and skipped updates.

The action `skip` of `spec.protection` is meant for an occasional bad batch. A job that skips every tenth update still
succeeds, but its model has had fewer updates than its steps suggest.
"""

from trainingjob_api.protocol import RECENT_STEPS
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.training import StopAtLoss
from trainingjob_api.status.progress_status import CheckpointStatus, ProgressStatus
from trainingjob_operator.core.observe.members import find_newest_step, find_restored_step
from trainingjob_operator.core.observe.observed import Observed
from trainingjob_operator.core.observe.progress import find_progress, find_resolved_steps, find_total_steps
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.problem_messages import quote_field

ALL_TRAINED = "all steps are trained and saved"
SKIP_WARNING_THRESHOLD = 10
"""Skips among the newest `RECENT_STEPS` steps from which a warning is issued."""


def describe_skipped_updates(progress: ProgressStatus | None) -> str:
    """Return the warning about skipped updates. Empty: they are few."""
    if progress is None or progress.skipped_lately < SKIP_WARNING_THRESHOLD:
        return ""
    return (
        f"{progress.skipped_lately} of the newest {RECENT_STEPS} updates up to step {progress.step:,} trained nothing: "
        "the loss was not finite, a spike, or independent of the parameters, or no token of the batch had a weight in "
        "it. Check the data of those steps in metrics.jsonl, the loss and its weights, or lower "
        "`spec.optimizer.learningRate`"
    )


def _describe_stop(stop: StopAtLoss, step: int, progress: ProgressStatus | None) -> str:
    """Return the message about a job that succeeded at a loss."""
    loss = progress.evaluations.get(stop.evaluation) if progress else None
    loss_text = "is" if loss is None else f"is {loss:.4g},"
    return (
        f"step {step:,} is saved, and training ended there: the loss of the evaluation `{stop.evaluation}` {loss_text} "
        f"at most {quote_field('spec.training.stopAtLoss.loss', f'{stop.loss:g}')}"
    )


def describe_completion(plan: Plan, seen: Observed) -> str:
    """Return the message about a succeeded job."""
    if plan.spec.command_program:
        return "the program has ended with exit code 0 on all hosts"
    restored, newest = find_restored_step(seen.member_views), find_newest_step(seen.member_views)
    live = seen.world.live if seen.world else None
    if live and live.stop and newest is not None and live.is_stopped(newest, find_resolved_steps(seen)):
        return _describe_stop(live.stop, newest, find_progress(plan, seen))
    spans = [(attempt.first_step, attempt.last_step) for attempt in seen.status.attempts] + [(restored, newest)]
    has_trained = any(first is not None and last is not None and last > first for first, last in spans)
    steps = find_total_steps(plan, seen)
    if steps is None:
        return ALL_TRAINED
    epochs = plan.spec.training.epochs
    length = (
        "`spec.training.steps`" if epochs is None else f"the number of steps of `spec.training.epochs` ({epochs:g})"
    )
    if restored is not None and restored >= steps and not has_trained:
        return f"nothing to train: the checkpoint is at step {restored:,}, and {length} is {steps:,}"
    if newest is not None and newest > steps:
        text = f"step {newest:,} was trained before {length} became {steps:,}"
        return f"{ALL_TRAINED}; {text}"
    return ALL_TRAINED


def describe_next_start(spec: TrainingJobSpec, checkpoint: CheckpointStatus | None) -> str:
    """Return how to train on after a failed job. Its object cannot be edited, and a new one has another UID.

    A local run has the same conditions. It keeps the UID, so the same command resumes.
    """
    folder = f"the same {quote_field('spec.checkpoint.uri', spec.checkpoint.uri)}"
    if spec.command_program:  # it reads and writes the folder itself: no job owns it, and `takeover` is rejected
        goal = "To run the program again"
        conditions = f"with {folder}: the program resumes from what it has saved there"
    elif checkpoint is None:
        goal = "To train again"
        conditions = (
            f"with {folder} and `spec.checkpoint.takeover: true` if this job owns the folder, or with another folder"
        )
    else:
        goal = f"To resume from step {checkpoint.step:,}"
        conditions = f"with {folder} and `spec.checkpoint.takeover: true`"
    return (
        f"{goal}, correct the cause and start the job again. On a cluster, delete this job and create it {conditions}. "
        "A local run resumes by the same `trainingjob run` command."
    )
