"""Progress of the preparation of all datasets of a job, in the log and for the operator."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import reduce
from threading import Lock

from trainingjob_api.data_report import PreparationProgress
from trainingjob_trainer.data.preparation.part_progress import PartProgress
from trainingjob_trainer.data.preparation.parts import PartWriter
from trainingjob_trainer.data.preparation.worker_pool import PartReport

LOG = logging.getLogger(__name__)
REPORT_SECONDS = 5.0
LOG_SECONDS = 30.0

type Report = Callable[[PreparationProgress], None]


def ignore_preparation(progress: PreparationProgress) -> None:
    """Report nothing."""


class PreparationTracker:
    """Adds up how much of some datasets is tokenized, and reports it at an interval.

    Parts of other hosts count once they are complete. Parts that exist already count from the beginning, but not for
    the rates.
    """

    def __init__(self, writers: Sequence[PartWriter], report: Report) -> None:
        self._writers = writers
        self._report = report
        self._total = sum(listed.size for writer in writers for listed in writer.manifest.files)
        self._lock = Lock()
        self._complete: dict[tuple[str, int], PartProgress] = {}
        self._running: dict[tuple[str, int], PartProgress] = {}
        self._find_complete_parts()
        self._before = self._sum()
        self._begin = self._reported = self._logged = time.monotonic()

    def follow(self, writer: PartWriter) -> PartReport:
        """Return what receives the progress of the parts of a dataset."""

        def receive(part: int, progress: PartProgress | None) -> None:
            with self._lock:
                if progress is None:
                    self._add_complete(writer, part)
                else:
                    self._running[writer.folder, part] = progress
                self._report_if_due()

        return receive

    def _report_if_due(self) -> None:
        now = time.monotonic()
        if now - self._reported < REPORT_SECONDS:
            return
        self._reported = now
        self._find_complete_parts()
        progress = self._measure(now - self._begin)
        self._report(progress)
        if now - self._logged >= LOG_SECONDS or progress.done_bytes >= progress.total_bytes:
            self._logged = now
            _log(progress)

    def _measure(self, seconds: float) -> PreparationProgress:
        done = self._sum()
        num_bytes, tokens = done.size - self._before.size, done.tokens - self._before.tokens
        rest = max(self._total - done.size, 0)
        return PreparationProgress(
            done_bytes=min(done.size, self._total),
            total_bytes=self._total,
            documents=done.documents,
            tokens=done.tokens,
            tokens_per_second=round(tokens / seconds, 1) if tokens > 0 and seconds > 0 else None,
            eta_seconds=round(rest * seconds / num_bytes) if num_bytes > 0 else None,
        )

    def _find_complete_parts(self) -> None:
        for writer in self._writers:
            for part in writer.list_complete_parts():
                self._add_complete(writer, part)

    def _add_complete(self, writer: PartWriter, part: int) -> None:
        key = writer.folder, part
        self._running.pop(key, None)
        if key not in self._complete:
            try:  # the pieces of a file count its documents
                files = () if writer.manifest.parts[part].is_account else writer.read_account(part).files
            except FileNotFoundError:  # another replica has completed the dataset, and has deleted the parts
                return
            documents, tokens = (sum(getattr(file, name) for file in files) for name in ("documents", "tokens"))
            self._complete[key] = PartProgress(writer.manifest.part_size(part), documents, tokens)

    def _sum(self) -> PartProgress:
        return reduce(PartProgress.plus, (*self._complete.values(), *self._running.values()), PartProgress())


def _log(progress: PreparationProgress) -> None:
    LOG.info(
        "tokenized %.1f of %.1f GB, %d documents, %d tokens, %.0f tokens/s, about %s min left",
        progress.done_bytes / 1e9,
        progress.total_bytes / 1e9,
        progress.documents,
        progress.tokens,
        progress.tokens_per_second or 0,
        "?" if progress.eta_seconds is None else round(progress.eta_seconds / 60),
    )
