"""Exports of kept checkpoints for other programs, made beside training, one at a time.

An export reads the files of a committed checkpoint, and no device. Its processes divide the files, and the first one
writes the record that completes the export. An export is deleted after its checkpoint. A failed export does not stop
training: it is reported, and the next save retries it. Before a job ends, all kept checkpoints are exported.
"""

import logging
import threading
from collections import Counter
from collections.abc import Collection
from contextlib import suppress

from jax.errors import JaxRuntimeError

from trainingjob_agent.checkpoint_layout import hash_job
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.protocol import MAX_MESSAGE, FailedSave, FailureReason
from trainingjob_api.spec.checkpoint import HuggingFaceExport
from trainingjob_api.world import RunConfig
from trainingjob_trainer.checkpoint import owner
from trainingjob_trainer.checkpoint.error_exchange import (
    ErrorExchange,
    SaveFailedError,
    describe_error,
    describe_unexpected,
)
from trainingjob_trainer.checkpoint.export_folders import (
    Export,
    ExportRecord,
    commit_export,
    delete_export,
    list_exports,
)
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.formats.saved_arrays import SavedParams
from trainingjob_trainer.checkpoint.frozen_tensors import find_array_folders, list_saved_files
from trainingjob_trainer.checkpoint.manifest import RateLimit, hash_files, read_integrity, select_share
from trainingjob_trainer.checkpoint.retention import list_kept
from trainingjob_trainer.checkpoint.step_changes import claim_step, new_step_folder
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.huggingface.export_weights import write_own_files
from trainingjob_trainer.huggingface.model_export import ExportTarget, PlannedExport, plan_export
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
FIELD = "spec.checkpoint.export.huggingFace.uri"
STAGE_SECONDS = 24 * 3600
"""Seconds for which the first process waits for the files of the last one: the store may be slow."""


def find_kept_export(config: RunConfig) -> HuggingFaceExport | None:
    """Return the export of kept checkpoints. None: the spec has none."""
    export = config.spec.checkpoint.export
    return export.hugging_face if export and export.hugging_face.when == "kept" else None


def claim(config: RunConfig) -> None:
    """Claim the folder of exports for this job. A store that does not answer is reported with the first export.

    Raises:
        TrainingError: another job owns the folder, and this job may not take it over.
    """
    if export := find_kept_export(config):
        owner.claim_if_available(open_store(export.uri), config, FIELD)


class KeptExports:
    """The exports of a job's kept checkpoints, as one process of one world makes them. `name` is the host in messages.

    `source` is the store of the checkpoints.
    """

    def __init__(
        self,
        export: HuggingFaceExport,
        config: RunConfig,
        source: Store,
        fence: Fence,
        peers: ProcessGroup,
        events: AgentEvents,
        name: str,
    ) -> None:
        self._config = config
        self._source = source
        self._fence = fence
        self._peers = peers.without_reports()
        self._events = events
        self._store = open_store(export.uri)
        self._dtype = export.dtype or config.spec.precision.params
        self._adapter = export.adapter or "merged"
        self._errors = ErrorExchange(self._peers, name, "kept-export", STAGE_SECONDS)
        self._pace = RateLimit()
        self._num_exchanges = Counter[str]()
        self._num_exports = 0
        self._newest = 0
        self._thread: threading.Thread | None = None  # None: this world has exported nothing yet
        self._is_running = False
        self._step_in_use: int | None = None
        self._failure = ""
        self._gave_up = ""  # empty: the thread has answered its peers so far, and more exports can follow
        self.selection_lock = threading.Lock()
        """Held while a step is chosen, and while steps are deleted: a chosen step is not deleted."""

    @property
    def steps_in_use(self) -> tuple[int, ...]:
        """Return the steps that must not be deleted from the checkpoint folder, because they are being exported."""
        step = self._step_in_use
        return () if step is None else (step,)

    def begin(self, step: int) -> None:
        """Begin to export the kept steps after a save, unless an export runs; process 0 decides.

        All processes call this together. `step` is the step that was saved.

        Raises:
            JaxRuntimeError: another process is gone.
        """
        self._newest = step
        (choice, *_) = self._exchange("first", self._choose_first())
        if choice:
            self._wait_for_thread()  # process 0 has seen its end, and the other processes are about to
            self._thread = threading.Thread(target=self._run_quietly, args=(choice,), name="export", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Export all kept steps before the job ends; all processes call this together.

        Raises:
            TrainingError: an export failed, or an earlier one was given up. The next attempt of the job repeats it.
            JaxRuntimeError: another process is gone.
        """
        self._pace.lift()
        self._wait_for_thread()
        if self._gave_up:  # the exchanges of the processes do not match any more
            raise self._make_error(self._gave_up)
        self._failure = ""
        (choice, *_) = self._exchange("first", self._choose_first())
        self._run(choice)
        failures = self._exchange("first", self._failure)
        self.delete_unmatched()
        if failed := next(filter(None, failures), ""):
            raise self._make_error(failed)

    def delete_unmatched(self) -> None:
        """Delete this job's exports whose checkpoint is gone, and incomplete ones of earlier worlds, on process 0.

        Raises:
            TrainingError: a later world exists, so this one is fenced off.
        """
        if self._peers.process:
            return
        try:
            needed = set(self._list_kept())
            running = self._fence.find_running()
            for export in list_exports(self._store):
                if export.record and export.record.checkpoint in needed and self._has_format(export.record):
                    needed.remove(export.record.checkpoint)
                elif self._is_deletable(export, running):
                    self._fence.check()
                    delete_export(export.folder)
        except OSError as error:  # the next call retries
            LOG.warning("an old export cannot be deleted error=%s", error)

    def _list_kept(self) -> dict[str, StepFolder]:
        """Return the kept steps by the names of their folders, oldest first."""
        return {folder.name: folder for folder, _ in list_kept(self._source, self._fence).values()}

    def _has_format(self, record: ExportRecord) -> bool:
        return (record.dtype, record.adapter) == (self._dtype, self._adapter)

    def _is_deletable(self, export: Export, running: Collection[int]) -> bool:
        """Return whether an export is this job's, and not one that this world or a running one is writing."""
        name = export.folder.step_name
        is_own = name.job == hash_job(self._fence.job_uid)
        is_earlier = name.generation < self._fence.generation
        return is_own and (export.record is not None or (is_earlier and name.generation not in running))

    def _choose_first(self) -> str:
        """Return the folder of the next step to export, on process 0 if no export runs; empty: none."""
        if self._peers.process:
            return ""
        with self.selection_lock:
            return "" if self._is_running else self._choose()

    def _choose_next(self) -> str:
        """Return the folder of the next step to export after another, on process 0; empty: none."""
        if self._peers.process:
            return ""
        with self.selection_lock:
            return self._choose()

    def _choose(self) -> str:
        """Return the newest kept step without an export; a failing store is reported."""
        pending: list[StepFolder] = []
        try:
            exports = [export.record for export in list_exports(self._store)]
            complete = {record.checkpoint for record in exports if record and self._has_format(record)}
            pending = [folder for name, folder in self._list_kept().items() if name not in complete]
        except OSError as error:
            self._report_failure(self._newest, describe_error(error))
        self._is_running = bool(pending)
        self._step_in_use = pending[-1].step if pending else None
        return pending[-1].name if pending else ""

    def _exchange(self, kind: str, text: str) -> tuple[str, ...]:
        """Return the text of every process. `kind` separates the exchanges of two threads."""
        self._num_exchanges[kind] += 1
        return self._peers.exchange(f"kept-export-{kind}/{self._num_exchanges[kind]}", text, STAGE_SECONDS)

    def _wait_for_thread(self) -> None:
        if self._thread:
            self._thread.join()

    def _run_quietly(self, choice: str) -> None:
        try:
            self._run(choice)
        except JaxRuntimeError:  # another process is gone, and the training thread sees that too
            LOG.exception("an export was given up")
        except Exception as error:
            LOG.exception("exports were given up until the next world")
            self._gave_up = describe_unexpected(error)
            self._report_failure(self._newest, self._gave_up)
            with self.selection_lock:
                self._step_in_use = None

    def _run(self, choice: str) -> None:
        """Export a step, then all others that are kept and have no export."""
        while choice:
            source = StepFolder(self._source, choice)
            try:
                self._export(source)
            except SaveFailedError as error:
                self._report_failure(source.step, str(error))
                with self.selection_lock:
                    self._is_running, self._step_in_use = False, None
                return
            self._failure = ""
            self._events.send(AgentEvent(exported=source.step))
            (choice, *_) = self._exchange("next", self._choose_next())

    def _export(self, source: StepFolder) -> None:
        """Export a committed step.

        Raises:
            SaveFailedError: a process failed; the incomplete export is deleted.
            JaxRuntimeError: another process is gone.
        """
        self._num_exports += 1
        folder = new_step_folder(self._store, source.lineage or 0, source.step, self._fence, self._num_exports)
        try:
            self._export_in_stages(source, folder)
        except SaveFailedError:
            if self._peers.process == 0:
                with suppress(OSError):  # the next world deletes the rest
                    delete_export(folder)
            raise
        LOG.info("exported step=%d folder=%s", source.step, folder.location)

    def _export_in_stages(self, source: StepFolder, folder: StepFolder) -> None:
        is_first = self._peers.process == 0
        record = ExportRecord(
            job_uid=self._fence.job_uid, checkpoint=source.name, dtype=self._dtype, adapter=self._adapter
        )
        self._errors.begin()
        self._errors.run_stage(lambda: self._prepare(folder) if is_first else None)
        self._errors.run_stage(lambda: self._verify(source))
        planned = self._errors.run_stage(lambda: self._plan(source, folder))
        self._errors.run_stage(lambda: self._write(planned, folder))
        self._errors.run_stage(lambda: planned.finish() if is_first else None)
        self._errors.run_stage(lambda: commit_export(folder, record, self._fence) if is_first else None)

    def _prepare(self, folder: StepFolder) -> None:
        owner.check_writable(self._store, FIELD)
        owner.claim(self._store, self._config, FIELD)
        self._fence.check()
        claim_step(folder, self._fence)

    def _verify(self, source: StepFolder) -> None:
        """Compare this process's share of a checkpoint with its hashes.

        Raises:
            ValueError: a file has changed, or the manifest cannot be read.
        """
        manifest = read_integrity(source)
        if manifest is None:
            raise ValueError(f"step {source.step} was deleted")
        files = list_saved_files(source, manifest)
        for file in select_share(files, self._peers.process, self._peers.num_processes):
            found = hash_files(file.folder, (file.name,), self._pace)
            if found[file.name] != file.expected:
                raise ValueError(file.describe(f"{file.name} has changed since it was saved", source))

    def _plan(self, source: StepFolder, folder: StepFolder) -> PlannedExport:
        target = ExportTarget(open_store(folder.location), self._dtype, adapter=self._adapter)
        return plan_export(self._config.spec, SavedParams(*find_array_folders(source)[:2]).read, self._source, target)

    def _write(self, planned: PlannedExport, folder: StepFolder) -> None:
        process, num_processes = self._peers.process, self._peers.num_processes
        write_own_files(planned.plan, planned.gather, open_store(folder.location), process, num_processes)

    def _make_error(self, failure: str) -> TrainingError:
        return TrainingError(
            FailureReason.STORAGE,
            f"the export of a kept step failed: {failure}. The checkpoints are complete: the next attempt "
            "exports them, or `trainingjob export`.",
            path=FIELD,
            value=self._store.root,
            fatal=False,
        )

    def _report_failure(self, step: int, message: str) -> None:
        LOG.warning("export failed step=%d error=%s", step, message)
        self._failure = message
        self._events.send(AgentEvent(failed_export=FailedSave(step=step, message=message[:MAX_MESSAGE])))
