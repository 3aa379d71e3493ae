"""The job of a local run: created, or resumed from the last run in the same folder.

Pure. The operator's memory in the status must survive between runs: the last world, and the lineage of saved steps. The
status of the last run's end is dropped, so that a new run can always start.
"""

from datetime import datetime
from typing import Any

from trainingjob_api.cel import IMMUTABLE, SPEC_RULES
from trainingjob_api.differences import list_differences
from trainingjob_api.spec.job import API_VERSION, KIND
from trainingjob_api.spec.training import StopAtLoss
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.cli.errors import CommandError
from trainingjob_operator.core.goodput import Bucket
from trainingjob_operator.core.manifests import Manifest, get_int, get_value
from trainingjob_operator.core.report.situation import Stage
from trainingjob_operator.core.stored_status import read_status, write_status
from trainingjob_operator.core.times import format_time

NAMESPACE = "local"
STATE_PATHS = (
    ("model",),
    ("lora",),
    ("data",),
    ("tokenizer",),
    ("objective",),
    ("training",),
    ("optimizer",),
    ("schedule",),
    ("precision",),
    ("parallelism", "replicas"),
)
"""Parts of the spec that saved state or the loss curve depends on.

Fields that the API server lets change may change here too.
"""
START_PATH = ("checkpoint", "initializeFrom")
"""What only a run without a saved step reads."""
IMMUTABLE_PATHS = frozenset(
    path for path, rules in SPEC_RULES.items() if any(rule["rule"] == IMMUTABLE for rule in rules)
)


def new_job(name: str, spec: dict[str, Any], uid: str, now: datetime) -> Manifest:
    """Return a job that has never run."""
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": uid,
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": format_time(now),
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def has_succeeded(job: Manifest) -> bool:
    """Return whether a job has trained all the steps of its spec, or has reached the loss at which it stops.

    A program of `program.command` has succeeded when it has ended: only it knows its steps.
    """
    status = read_status(job)
    if status.phase != Stage.SUCCEEDED:
        return False
    if get_value(job, "spec", "program", "command") is not None:
        return True
    steps = get_int(job, "spec", "training", "steps")
    done = status.progress.step if status.progress else 0
    return done == 0 or (steps is not None and steps <= done) or _is_complete(job, status)


def _is_complete(job: Manifest, status: TrainingJobStatus) -> bool:
    """Return whether a job that succeeded has no more steps to train with its spec."""
    live, progress = status.world.live if status.world else None, status.progress
    if live is None or progress is None:
        return False
    training = get_value(job, "spec", "training") or {}
    stop = training.get("stopAtLoss")
    update = {name: training.get(name) for name in ("steps", "epochs")}
    edited = live.model_copy(update=update | {"stop": StopAtLoss.model_validate(stop) if stop else None})
    return not edited.lets_resume(live, progress.step, progress.of, progress.evaluations)


def resume_job(job: Manifest, spec: dict[str, Any]) -> Manifest:
    """Return the job with the new spec, ready to resume. A job that has trained all its steps is unchanged.

    Raises:
        CommandError: the spec changes a field that saved state depends on.
    """
    paths = (*STATE_PATHS, START_PATH) if read_status(job).checkpoint else STATE_PATHS
    changed = [
        f"spec.{'.'.join(path)}: {after!r}, was {before!r}"
        for part in paths
        for path, before, after in list_differences(get_value(job["spec"], *part), get_value(spec, *part), *part)
        if any(path[:length] in IMMUTABLE_PATHS for length in range(1, len(path) + 1))
    ]
    if changed:
        lines = "".join(f"\n  {line}" for line in changed)
        raise CommandError(
            f"the job differs from the one that was started in this folder:{lines}\n"
            "Revert the change, restart with --fresh, or use another folder with --dir."
        )
    if has_succeeded({**job, "spec": spec}):
        return job
    metadata = {**job["metadata"], "generation": job["metadata"]["generation"] + 1}
    return {**job, "metadata": metadata, "spec": spec, "status": write_status(_reset_after_pause(read_status(job)))}


def _reset_after_pause(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status after a pause. The time since the last run counts as suspended, and a failure is cleared."""
    if status.completion_time is None:
        return status.model_copy(
            update={"goodput": status.goodput.model_copy(update={"current": Bucket.SUSPENDED.value})}
        )
    return TrainingJobStatus(
        world=status.world,
        lineage=status.lineage,
        progress=status.progress,
        checkpoint=status.checkpoint,
        backup=status.backup,
        export=status.export,
    )
