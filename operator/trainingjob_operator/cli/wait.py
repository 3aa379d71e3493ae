"""`trainingjob wait`: wait until a job has ended, for scripts, and print each change of its state."""

from datetime import UTC, datetime

from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.cli.errors import EXIT_NEGATIVE
from trainingjob_operator.cli.interrupts import run_interruptible
from trainingjob_operator.cli.remote_job import Target, open_remote_job
from trainingjob_operator.cli.report import describe_job
from trainingjob_operator.cli.watch import POLL_SECONDS, PollResult, poll_until_done


def wait_for_end(target: Target, timeout: float | None) -> int:
    """Print each change of a job's state until the job has ended; return the exit code.

    `timeout` is in seconds; None waits without limit.

    Raises:
        CommandError: there is no such job, or the cluster cannot be reached.
    """
    return run_interruptible(_wait(target, timeout))


async def _wait(target: Target, seconds: float | None) -> int:
    def evaluate(status: TrainingJobStatus) -> PollResult:
        headline = describe_job(target.name, status, datetime.now(UTC))[0]
        if status.completion_time is None:
            return PollResult(headline)
        return PollResult(headline, 0 if status.phase == "Succeeded" else EXIT_NEGATIVE)

    timeout_message = f"{target.name} is not over yet, and --timeout has passed."
    async with open_remote_job(target) as remote:
        return await poll_until_done(
            remote, evaluate, interval=POLL_SECONDS, timeout_seconds=seconds, timeout_message=timeout_message
        )
