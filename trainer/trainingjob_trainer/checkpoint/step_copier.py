"""The copy of one step to another store, by all processes of a world, each its share of the files.

Every file is compared with its hash during the copy. The copy is committed by `integrity.json`, once all other files
exist, as a step is committed by a save.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from trainingjob_agent.checkpoint_layout import MANIFEST_FILE
from trainingjob_api.world import RunConfig
from trainingjob_trainer.checkpoint import owner
from trainingjob_trainer.checkpoint.commit import commit_step
from trainingjob_trainer.checkpoint.error_exchange import ErrorExchange, SaveFailedError
from trainingjob_trainer.checkpoint.fence import Fence
from trainingjob_trainer.checkpoint.frozen_tensors import read_frozen
from trainingjob_trainer.checkpoint.manifest import (
    FileHash,
    Integrity,
    RateLimit,
    SavedFrozen,
    find_damage,
    select_share,
)
from trainingjob_trainer.checkpoint.saved_steps import delete_interrupted
from trainingjob_trainer.checkpoint.step_changes import delete_step
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.port import Store

FIELD = "spec.checkpoint.backup.uri"
COPY_SECONDS = 24 * 3600
"""Seconds for which the first process waits for the files of the last one: the store may be slow."""


class StepCopier:
    """Copies steps to a store, one at a time, as one process of a world. `name` is the host in messages."""

    def __init__(self, store: Store, config: RunConfig, fence: Fence, peers: ProcessGroup, name: str) -> None:
        self.store = store
        self.fence = fence
        self._config = config
        self._peers = peers
        self._error_exchange = ErrorExchange(peers, name, "copy", COPY_SECONDS)
        self._pace = RateLimit()

    def copy(self, source: StepFolder, record: Integrity) -> None:
        """Copy a committed step; all processes call this together.

        Raises:
            SaveFailedError: a process failed; the incomplete copy is deleted.
            JaxRuntimeError: another process is gone.
        """
        copy = StepFolder(self.store, source.name)
        try:
            self._copy_in_stages(source, copy, record)
        except SaveFailedError:
            if self._peers.process == 0:
                with suppress(OSError):  # the next copy deletes the rest
                    delete_step(copy, self.fence)
                    delete_interrupted(self.store, self.fence, own=True)
            raise

    def lift_rate_limit(self) -> None:
        """Lift the rate limit: another thread waits for the copies."""
        self._pace.lift()

    def _copy_in_stages(self, source: StepFolder, copy: StepFolder, record: Integrity) -> None:
        process = self._peers.process
        names = select_share(sorted(record.files), process, self._peers.num_processes)
        self._error_exchange.begin()
        self._error_exchange.run_stage(lambda: self._prepare() if process == 0 else None)
        if record.frozen:
            self._copy_frozen(source, record.frozen)
        files = {name: record.files[name] for name in names}
        self._error_exchange.run_stage(lambda: copy_files(source, copy, files, self._pace))
        self._error_exchange.run_stage(lambda: commit_step(copy, record, self.fence) if process == 0 else None)

    def _copy_frozen(self, step: StepFolder, reference: SavedFrozen) -> None:
        """Copy the frozen tensors of a step, unless an earlier copy is committed."""
        process, num_processes = self._peers.process, self._peers.num_processes
        copy = StepFolder(self.store, reference.folder)

        def is_copied() -> bool:
            return not find_damage(copy, {MANIFEST_FILE: reference.manifest})

        def copy_share() -> None:
            source, manifest = read_frozen(step, reference)
            names = select_share(sorted(manifest.files), process, num_processes)
            copy_files(source, copy, {name: manifest.files[name] for name in names}, self._pace)

        def commit() -> None:
            self.fence.check()
            source, _ = read_frozen(step, reference)
            copy_files(source, copy, {MANIFEST_FILE: reference.manifest}, self._pace)

        self._error_exchange.run_stage(lambda: None if is_copied() else copy_share())
        self._error_exchange.run_stage(lambda: None if process or is_copied() else commit())

    def _prepare(self) -> None:
        claim_backup(self.store, self._config)
        self.fence.check()
        delete_interrupted(self.store, self.fence, own=True)  # of a killed world or a failed copy: it may fill the disk


def claim_backup(store: Store, config: RunConfig) -> None:
    """Claim the backup folder for this job.

    Raises:
        TrainingError: another job owns the folder, and this job may not take it over. Or the folder cannot be written.
    """
    owner.check_writable(store, FIELD)
    owner.claim(store, config, FIELD)


def copy_files(source: StepFolder, copy: StepFolder, expected: Mapping[str, FileHash], pace: RateLimit) -> None:
    """Copy files of a step from store to store, and compare each with its hash during the copy.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: a file differs from what was saved.
    """
    for name, fingerprint in expected.items():
        if _copy_file(source, copy, name, pace) != fingerprint:
            raise ValueError(f"{name} has changed since it was saved")


def _copy_file(source: StepFolder, copy: StepFolder, name: str, pace: RateLimit) -> FileHash:
    size, digest = 0, hashlib.sha256()

    def observe(chunks: Iterable[bytes]) -> Iterator[bytes]:
        nonlocal size
        for chunk in chunks:
            size += len(chunk)
            digest.update(chunk)
            yield chunk

    copy.store.write(copy.file(name), observe(pace.throttle(source.store.read_chunks(source.file(name)))))
    return FileHash(size=size, sha256=digest.hexdigest())
