"""Copies of checkpoints on a second store, made beside training, one at a time.

The backup folder has the same layout and names as the checkpoint folder, and the same code reads both. A failed copy
does not stop training: it is reported, and the next copy that is due retries.
"""

import logging
import threading
import time

from jax.errors import JaxRuntimeError

from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.base import seconds
from trainingjob_api.protocol import MAX_MESSAGE, FailedSave
from trainingjob_api.spec.checkpoint import Keep
from trainingjob_api.world import RunConfig
from trainingjob_trainer.checkpoint import owner
from trainingjob_trainer.checkpoint.error_exchange import SaveFailedError, describe_unexpected
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.manifest import Integrity
from trainingjob_trainer.checkpoint.retention import delete_expired
from trainingjob_trainer.checkpoint.step_copier import FIELD, StepCopier
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
START_SECONDS = 1800
LAST_COPY_SECONDS = 3600
"""Seconds for which the end of a job waits for the copy of its last step."""
RETRY_SECONDS = 60.0
"""Seconds after a failed copy before the next saved step is copied."""


def claim(config: RunConfig) -> None:
    """Claim the backup folder for this job. A store that does not answer is reported with the first copy.

    Raises:
        TrainingError: another job owns the folder, and this job may not take it over.
    """
    backup = config.spec.checkpoint.backup
    if backup is None:
        return
    owner.claim_if_available(open_store(backup.uri), config, FIELD)


class Backup:
    """The copies of a job, as one process of one world makes them. `name` is the host in messages.

    Raises:
        ValueError: the spec has no backup.
    """

    def __init__(self, config: RunConfig, fence: Fence, peers: ProcessGroup, events: AgentEvents, name: str) -> None:
        backup = config.spec.checkpoint.backup
        if backup is None:
            raise ValueError("the spec names no backup folder")
        self._every = seconds(backup.every)
        self._keep = Keep(last=backup.keep)
        self._peers = peers.without_reports()
        self._events = events
        self._copier = StepCopier(open_store(backup.uri), config, fence, self._peers, name)
        self._exchanges = 0
        self._started_at: float | None = None  # None: this world has copied nothing yet
        self._is_failing = False
        self._gave_up = ""  # empty: the thread has answered its peers so far, and more copies can follow
        self._newest = 0
        self._step_in_copy: int | None = None
        self._thread: threading.Thread | None = None

    @property
    def store(self) -> Store:
        """Return the store of the copies."""
        return self._copier.store

    @property
    def steps_in_use(self) -> tuple[int, ...]:
        """Return the steps that must not be deleted from the checkpoint folder, because they are being copied."""
        step = self._step_in_copy
        return () if step is None else (step,)

    def copy_if_due(self, folder: StepFolder, record: Integrity, restored: int) -> None:
        """Begin to copy a step that was just saved, if a copy is due; process 0 decides, because clocks differ.

        No copy begins after a process gave up: the exchanges of the processes do not match any more.
        `restored` is the step that the world resumed from: its copy is kept.

        Raises:
            JaxRuntimeError: another process is gone.
        """
        decision = "copy" if self._peers.process == 0 and self._is_due() else ""
        decisions = self._exchange("gave up" if self._gave_up else decision, START_SECONDS)
        if decisions[0] == "copy" and "gave up" not in decisions:
            self._start_copy(folder, record, restored)

    def wait_for_last(self, folder: StepFolder, record: Integrity, restored: int) -> None:
        """Wait until the last step is copied, or its copy has failed.

        A copy needs all processes, and one of them may still be busy with an earlier copy. So all of them begin the
        last copy, or none does.
        """
        deadline = time.monotonic() + LAST_COPY_SECONDS
        self._copier.lift_rate_limit()
        self._wait(deadline)
        late = self._step_in_copy  # read once: the thread of the copy sets it to None
        decision = "copy" if late is None and self._newest < record.step and not self._gave_up else ""
        try:
            is_begun = all(self._exchange(decision, LAST_COPY_SECONDS + START_SECONDS))
        except JaxRuntimeError as error:
            self._report_failure(record.step, f"another process is gone: {error}")
            return
        if is_begun:
            self._start_copy(folder, record, restored)
            self._wait(deadline)
            late = self._step_in_copy
        if self._gave_up:
            self._report_failure(record.step, self._gave_up)
        elif late is not None:
            self._report_failure(late, f"it took longer than {LAST_COPY_SECONDS} s, and the job is at its end")

    def _exchange(self, decision: str, seconds: float) -> tuple[str, ...]:
        """Return the decision of each process about the next copy."""
        self._exchanges += 1
        return self._peers.exchange(f"backup/{self._exchanges}", decision, seconds)

    def _is_due(self) -> bool:
        if self._step_in_copy is not None:
            return False
        pause = min(RETRY_SECONDS, self._every) if self._is_failing else self._every
        return self._started_at is None or time.monotonic() - self._started_at >= pause

    def _wait(self, deadline: float) -> None:
        if self._thread:
            self._thread.join(max(deadline - time.monotonic(), 0.0))

    def _start_copy(self, folder: StepFolder, record: Integrity, restored: int) -> None:
        if self._thread:
            self._thread.join()  # process 0 has seen its end, and the other processes are about to
        self._started_at, self._step_in_copy = time.monotonic(), record.step
        self._thread = threading.Thread(
            target=self._copy, args=(folder, record, restored), name=f"copy-{record.step}", daemon=True
        )
        self._thread.start()

    def _copy(self, folder: StepFolder, record: Integrity, restored: int) -> None:
        try:
            self._copier.copy(folder, record)
        except SaveFailedError as error:
            self._is_failing = True
            self._report_failure(record.step, str(error))
        except JaxRuntimeError:  # another process is gone, and the training thread sees that too
            LOG.exception("a copy was given up step=%d", record.step)
        except Exception as error:
            LOG.exception("copies were given up until the next world step=%d", record.step)
            self._gave_up = describe_unexpected(error)
            self._report_failure(record.step, self._gave_up)
        else:
            self._is_failing, self._newest = False, record.step
            self._events.send(AgentEvent(copied=record.step))
            self._delete_old(record.step, restored)
        self._step_in_copy = None

    def _delete_old(self, step: int, restored: int) -> None:
        """Delete the copies that need not be kept, on process 0. The next copy retries."""
        if self._peers.process == 0:
            try:
                delete_expired(self.store, self._copier.fence, self._keep, step, {restored})
            except TrainingError as error:  # a later world exists, and the training thread sees that too
                LOG.warning("old copies are not deleted error=%s", error)
            except Exception:  # the copy is complete, and this thread must end as after any other
                LOG.exception("old copies are not deleted step=%d", step)

    def _report_failure(self, step: int, message: str) -> None:
        LOG.warning("backup failed step=%d error=%s", step, message)
        self._events.send(AgentEvent(failed_copy=FailedSave(step=step, message=message[:MAX_MESSAGE])))
