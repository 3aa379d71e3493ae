"""Data sets of the Hugging Face hub, downloaded below the job's folder, where all hosts read them.

The leading host downloads, and the next attempt resumes an interrupted download. The other hosts wait for the record,
which is written last and fixes the commit. The files are deleted when the tokens are complete.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from trainingjob_api.formats import FORMATS, advise_format, find_unsupported, is_of_format
from trainingjob_api.globs import Glob
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.data import TextSource
from trainingjob_api.spec.hub import DEFAULT_REVISION, HubDataset
from trainingjob_trainer.data.preparation.listed_files import Sources
from trainingjob_trainer.data.sources.hub_splits import HubMetadataError, find_split_files
from trainingjob_trainer.data.sources.source_files import plural
from trainingjob_trainer.huggingface.hub_client import HubRepository
from trainingjob_trainer.huggingface.hub_folder import POLL_SECONDS, download_names, read_record
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
FOLDER = "huggingface/datasets"
"""The folder of all downloaded data sets, below `checkpoint.uri`."""
README = "README.md"
MAX_README_BYTES = 8 << 20
TOKEN_FIELD = "spec.data.token"  # noqa: S105  # the name of a field


@dataclass(frozen=True)
class _Download:
    """The download of one source."""

    field: str
    source: TextSource
    dataset: HubDataset
    own: Store

    @property
    def folder(self) -> str:
        """Return its folder: another one for each choice of files."""
        chosen = [self.dataset.model_dump(), self.source.format, self.source.pattern, self.source.exclude]
        return f"{FOLDER}/{hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]}"

    @property
    def record(self) -> str:
        """Return the name of the record. It exists only if the files are complete."""
        return f"{self.folder}/download.json"

    def locate_files(self, commit: str) -> str:
        """Return the folder of the files of a commit. An incomplete one is never taken for that of another commit."""
        return f"{self.folder}/{commit}"

    def read_commit(self) -> str:
        """Return the commit of the files; empty: they are not complete."""
        return str(read_record(self.own, self.record).get("commit", ""))

    def resolve(self, commit: str) -> TextSource:
        """Return the source with the path and the commit of the downloaded files."""
        files = {"path": self.own.locate(self.locate_files(commit)), "pattern": "**/*"}
        pinned = self.dataset.model_copy(update={"revision": commit})
        return self.source.model_copy(update={**files, "hugging_face": pinned})

    def run(self) -> str:
        """Download the files, and return their commit.

        Raises:
            TrainingError: the hub refuses the data set or does not respond, or it has no such files.
            OSError: the files cannot be written.
        """
        revision = self.dataset.revision or DEFAULT_REVISION
        place = f"{self.field}.huggingFace.repository"
        hub = HubRepository(self.dataset.repository, revision, "dataset", place, TOKEN_FIELD)
        commit = hub.find_commit()
        names = self._choose_files(hub, commit)
        LOG.info("downloading dataset=%s revision=%s commit=%s files=%d", hub.name, revision, commit, len(names))
        download_names(self.own, self.locate_files(commit), hub, commit, names)
        self.own.write(self.record, [json.dumps({"commit": commit}).encode()])
        return commit

    def _choose_files(self, hub: HubRepository, commit: str) -> list[str]:
        """Return the files to read."""
        files = hub.list_files(commit)
        if self.source.pattern is not None:
            glob = Glob(self.source.pattern)
            found = [name for name in files if glob.matches(name)]
        else:
            found = self._find_split(files, self._read_readme(hub, commit, files))
        kept = [name for name in found if not _is_excluded(name, self.source.exclude)]
        if not kept:
            raise self._no_files_error(files)
        return kept

    def _find_split(self, repository_files: Sequence[str], readme: str) -> list[str]:
        files = [name for name in repository_files if is_of_format(name, self.source.format)]
        if not files:
            raise self._no_files_error(repository_files)
        try:
            return find_split_files(files, readme, self.dataset.configuration, self.dataset.split)
        except HubMetadataError as error:
            field = f"{self.field}.huggingFace.{error.field}"
            message = f"{self.dataset.repository} {error} Set another, or choose files with `pattern`."
            value = getattr(self.dataset, error.field)
            raise TrainingError(FailureReason.CONFIG, message, path=field, value=value) from error

    def _read_readme(self, hub: HubRepository, commit: str, files: Sequence[str]) -> str:
        """Return the text of README.md, whose beginning may have metadata; empty: there is none."""
        if README not in files:
            return ""
        about = f"{self.folder}/about/{commit}"
        download_names(self.own, about, hub, commit, [README])
        return self.own.read(f"{about}/{README}", MAX_README_BYTES).decode(errors="replace")

    def _no_files_error(self, files: Sequence[str]) -> TrainingError:
        """Return the error of a data set without files to read, which names those of other formats."""
        source, where = self.source, f"{self.dataset.repository} has no"
        if source.pattern is not None:
            message = (
                f"{where} file that matches `{source.pattern}`. It has {plural(len(files), 'file')}: {_some(files)}."
            )
            return self._error(message, "pattern", source.pattern)
        kinds = [name for name in FORMATS if any(is_of_format(file, name) for file in files)]
        other = next(filter(None, (find_unsupported(name, "text") for name in files)), "")
        advice = (
            f"Nearest legal value{'s' if len(kinds) > 1 else ''}: {', '.join(kinds)}."
            if kinds
            else f"It has {other} files: {advise_format(other, 'convert them to a supported format')}."
            if other
            else f"It has {_some(files) or 'no files'}."
        )
        return self._error(f"{where} files of `format: {source.format}`. {advice}", "format", source.format)

    def _error(self, message: str, field: str, value: str) -> TrainingError:
        return TrainingError(FailureReason.DATA, message, path=f"{self.field}.{field}", value=value)


def download_sources(sources: Sources, own: Store) -> Sources:
    """Return sources whose files are on storage, after a download of those of the hub.

    Raises:
        TrainingError: the hub refuses a data set or does not respond, or it has no such files.
        OSError: the files cannot be written.
    """
    return [(field, _download_source(field, source, own)) for field, source in sources]


def _download_source(field: str, source: TextSource, own: Store) -> TextSource:
    if source.hugging_face is None:
        return source
    download = _Download(field, source, source.hugging_face, own)
    return download.resolve(download.read_commit() or download.run())


def wait_for_sources(sources: Sources, own: Store, is_done: Callable[[], bool]) -> Sources:
    """Return sources whose files are on storage, once the leading host has downloaded those of the hub.

    The result is empty if `is_done` is true before: nothing needs the files any more.
    """
    resolved: list[tuple[str, TextSource]] = []
    for field, source in sources:
        if source.hugging_face is None:
            resolved.append((field, source))
            continue
        download = _Download(field, source, source.hugging_face, own)
        while not (commit := download.read_commit()):
            if is_done():
                return []
            time.sleep(POLL_SECONDS)
        resolved.append((field, download.resolve(commit)))
    return resolved


def delete_downloads(own: Store) -> None:
    """Delete downloaded data sets, if there are any. A failure is logged: nothing depends on it."""
    try:
        own.delete_tree(FOLDER)
    except OSError as error:
        LOG.warning("cannot delete downloaded data sets folder=%s error=%s", own.locate(FOLDER), error)


def _is_excluded(name: str, exclude: Sequence[str]) -> bool:
    """Return whether a pattern excludes a file, or a folder that holds it."""
    path = PurePosixPath(name)
    paths = [str(path), *(str(parent) for parent in path.parents if parent.name)]
    return any(Glob(pattern, hidden=True).matches(part) for pattern in exclude for part in paths)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
