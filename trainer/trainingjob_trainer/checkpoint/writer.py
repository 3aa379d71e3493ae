"""Saves in the background: begin, finish, report success or failure. One save at a time.

A failed save does not stop training: it is reported, training continues, and the next save retries.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.protocol import MAX_MESSAGE, FailedSave
from trainingjob_trainer.checkpoint.commit import Committer, PendingStep
from trainingjob_trainer.checkpoint.error_exchange import SaveFailedError
from trainingjob_trainer.checkpoint.manifest import Integrity
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.agent_events import AgentEvents

LOG = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes one step at a time in the background, and calls `after_commit` in its thread after each commit."""

    def __init__(
        self, committer: Committer, events: AgentEvents, after_commit: Callable[[StepFolder, Integrity], None]
    ) -> None:
        self._committer = committer
        self._events = events
        self._after_commit = after_commit
        self._thread: threading.Thread | None = None  # None: no save since the last `wait`
        self._outcome: FailedSave | int | None = None  # None: no save has ended since the last `wait`
        self._error: Exception | None = None
        self.begun: Integrity | None = None
        """The record of the newest save that has begun. None: this world has saved nothing yet."""
        self.newest = 0
        """The newest step that was saved and awaited; 0: none."""
        self.is_failing = False
        """Whether the newest awaited save has failed: the same on all processes at the same step."""

    @property
    def is_writing(self) -> bool:
        """Return whether a save has not ended yet."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def has_failed(self) -> bool:
        """Return whether the newest save that has ended on this process has failed, awaited or not."""
        return self.is_failing if self._outcome is None else isinstance(self._outcome, FailedSave)

    def begin(self, record: Integrity, items: Mapping[str, Any]) -> None:
        """Copy the items of a state, and write them in the background. The previous save must have been awaited.

        `record` has no file hashes yet.
        """
        self.begun = record
        pending = self._committer.begin(record.lineage, record.step, items)
        self._thread = threading.Thread(
            target=self._finish, args=(pending, record), name=f"commit-{record.step}", daemon=True
        )
        self._thread.start()

    def wait(self) -> FailedSave | int | None:
        """Wait for the save that was begun; return its failure or its step. None: it was awaited before.

        Raises:
            TrainingError: a later world exists, so this one is fenced off.
            JaxRuntimeError: another process is gone.
        """
        if self._thread:
            self._committer.lift_rate_limit()
            self._thread.join()
            self._thread = None
        self.raise_error()
        outcome, self._outcome = self._outcome, None
        match outcome:
            case FailedSave():
                self.is_failing = True
            case int(step):
                self.newest, self.is_failing = step, False
        return outcome

    def raise_error(self) -> None:
        """Raise the error of the background thread, if any."""
        if self._error:
            raise self._error

    def _finish(self, pending: PendingStep, record: Integrity) -> None:
        try:
            saved = self._committer.finish(pending, record)
        except SaveFailedError as error:
            self._report_failure(record.step, str(error))
        except Exception as error:  # noqa: BLE001  # the training thread raises it
            self._error = error
        else:
            self._outcome = record.step
            self._events.send(AgentEvent(committed=record.step))
            self._clean_up(pending.folder, saved)

    def _clean_up(self, folder: StepFolder, saved: Integrity) -> None:
        try:
            self._after_commit(folder, saved)
        except Exception as error:  # noqa: BLE001  # the training thread raises it
            self._error = error

    def _report_failure(self, step: int, message: str) -> None:
        LOG.warning("save failed step=%d error=%s", step, message)
        self._outcome = FailedSave(step=step, message=message[:MAX_MESSAGE])
        self._events.send(AgentEvent(failed_save=self._outcome))
