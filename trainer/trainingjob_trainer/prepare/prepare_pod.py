"""A pod of the preparation phase: it tokenizes its share of a job's text, and reports how much is tokenized.

The exit code is 0 when all tokens of the job exist, 143 when the pod is deleted, and 78 when the pod's environment is
invalid. Otherwise the termination message is a `Failure` as JSON, from which the operator decides whether to retry.
"""

import asyncio
import logging
import os
import signal
import sys
import uuid
from types import FrameType

from trainingjob_agent.host_environment import (
    BrokenEnvironmentError,
    Environment,
    find_termination_log,
    read_environment,
)
from trainingjob_agent.rendezvous import Rendezvous, RendezvousError
from trainingjob_agent.supervisor import write_termination_message
from trainingjob_api.data_report import PreparationProgress
from trainingjob_api.protocol import Failure, HostReport, Phase
from trainingjob_api.spec.data import Prepare
from trainingjob_trainer.checkpoint import owner
from trainingjob_trainer.data.dataset_writer import HostShare
from trainingjob_trainer.data.token_cache import prepare_datasets
from trainingjob_trainer.huggingface.hub_tokenizer import resolve_tokenizer
from trainingjob_trainer.runtime.failure_records import failure_record
from trainingjob_trainer.store.opening import open_store

LOG = logging.getLogger(__name__)
REPORT_SECONDS = 5.0
TERMINATED = 128 + signal.SIGTERM
MEMORY_OF_HOSTS, MEMORY = "spec.runtime.resources.memory", "spec.data.prepare.resources.memory"


class ProgressReporter:
    """Reports the newest progress of this pod to the operator, until it is cancelled."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._instance = uuid.uuid4().hex
        self.progress: PreparationProgress | None = None
        """The newest progress. None: nothing is known yet."""

    def describe(self) -> HostReport:
        """Return the report of this pod, which is in no world."""
        environment = self._environment
        return HostReport(
            job_uid=environment.config.job.uid,
            pod=environment.pod,
            pod_uid=environment.pod_uid,
            slice=environment.slice,
            host=environment.host,
            address=environment.address,
            instance=self._instance,
            port=1,
            standby=False,
            phase=Phase.PREPARING,
            preparation=self.progress,
        )

    async def run(self) -> None:
        """Report at an interval. Nothing waits for a report, so an unreachable operator changes nothing."""
        environment = self._environment
        async with Rendezvous(environment.rendezvous, environment.token, environment.ca) as rendezvous:
            while True:
                try:
                    await rendezvous.post(self.describe())
                except RendezvousError as error:
                    LOG.info("the report stayed without an answer error=%r", str(error))
                await asyncio.sleep(REPORT_SECONDS)


def main() -> int:
    """Tokenize the share of this pod; return its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    signal.signal(signal.SIGTERM, _exit_at_once)  # without a handler, process 1 ignores the signal
    try:
        environment = read_environment(os.environ)
    except BrokenEnvironmentError as error:
        LOG.error("%s", error)
        write_termination_message(find_termination_log(os.environ), str(error))
        return os.EX_CONFIG
    return asyncio.run(_run(environment))


def _exit_at_once(number: int, frame: FrameType | None) -> None:
    os._exit(TERMINATED)  # complete parts are on storage


async def _run(environment: Environment) -> int:
    reporter = ProgressReporter(environment)
    reports = asyncio.create_task(reporter.run())
    try:
        await asyncio.to_thread(_prepare, environment, reporter)
    except Exception as error:
        LOG.exception("tokenizing the text failed")
        failure = _describe_failure(error)
        write_termination_message(environment.termination_log, failure.model_dump_json(exclude_defaults=True))
        return 1
    finally:
        reports.cancel()
    return 0


def _prepare(environment: Environment, reporter: ProgressReporter) -> None:
    """Tokenize the share of this pod, and wait for the others.

    Raises:
        TrainingError: the text or the tokenizer cannot be used, or the folder cannot be written.
    """
    config = environment.config
    store = open_store(config.spec.checkpoint.uri)
    owner.check_writable(store)
    if environment.host == 0:  # the folder of another job is refused before the work, not after it
        owner.claim(store, config)

    def receive(progress: PreparationProgress) -> None:
        reporter.progress = progress

    prepare = config.spec.data.prepare or Prepare()
    spec = resolve_tokenizer(config.spec, store, is_leader=environment.host == 0)
    share = HostShare(environment.host, prepare.parallelism)
    prepare_datasets(store, config.model_copy(update={"spec": spec}), share, receive)


def _describe_failure(error: Exception) -> Failure:
    """Return the failure for the operator, with the field that sets the memory of this pod."""
    failure = failure_record(error, step=None)
    return failure.model_copy(
        update={
            "log": "",  # the termination message is short
            "message": failure.message.replace(MEMORY_OF_HOSTS, MEMORY),
            "path": failure.path.replace(MEMORY_OF_HOSTS, MEMORY),
        }
    )


if __name__ == "__main__":
    sys.exit(main())
