"""Client of the Hugging Face hub: the commit, the files and the download of a repository, with errors for jobs."""

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.runtime.errors import TrainingError, shorten

ENDPOINT_VARIABLE = "HF_ENDPOINT"
CLIENT_OPTIONS = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_XET": "1",  # its cache may fill the disk of the pod
}
"""Environment variables of the client, unless the pod sets them."""
FORBIDDEN = (401, 403, 404)
"""Answers that stay the same until the job or the repository is changed."""
MAX_REASON = 300


@dataclass(frozen=True)
class HubRepository:
    """A revision of a repository.

    Its methods raise `TrainingError` if the hub refuses the repository or does not respond, and `OSError` if files
    cannot be written.
    """

    name: str
    revision: str
    kind: Literal["model", "dataset"]
    field: str
    """The field of the spec that names the repository."""
    token_field: str

    def find_commit(self) -> str:
        """Return the commit of the revision."""
        with self._errors():
            api = _load_client().HfApi(_endpoint())
            return str(api.repo_info(self.name, revision=self.revision, repo_type=self.kind).sha)

    def list_files(self, commit: str) -> list[str]:
        """Return the paths of the files of a commit, in order."""
        with self._errors():
            api = _load_client().HfApi(_endpoint())
            return sorted(api.list_repo_files(self.name, revision=commit, repo_type=self.kind))

    def download(self, commit: str, folder: str, patterns: Sequence[str]) -> None:
        """Download the files of a commit that match a pattern. What an interrupted download has left is resumed."""
        with self._errors():
            _load_client().snapshot_download(
                self.name,
                revision=commit,
                repo_type=self.kind,
                local_dir=folder,
                allow_patterns=list(patterns),
                endpoint=_endpoint(),
            )

    def download_files(self, commit: str, folder: str, names: Sequence[str]) -> None:
        """Download files of a commit by their paths."""
        self.download(commit, folder, [glob.escape(name) for name in names])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        _load_client()
        from huggingface_hub.errors import (  # type: ignore[attr-defined]  # noqa: PLC0415
            HTTPError,
            LocalEntryNotFoundError,
        )

        try:
            yield
        except (HTTPError, LocalEntryNotFoundError, ConnectionError) as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> TrainingError:
        """Return the error for a failed request. Of some, a retry would fail in the same way."""
        status = getattr(getattr(error, "response", None), "status_code", 0)
        where = f"{self.name} at revision {self.revision}"
        if status in FORBIDDEN:
            return TrainingError(
                FailureReason.CONFIG,
                f"the hub answers with status {status} for {where}. Check both names. A private or gated repository "
                f"needs {self.token_field}, of an account with access.",
                path=self.field,
                value=self.name,
            )
        reason = f"status {status}" if status else " ".join(str(error).split())
        return TrainingError(
            FailureReason.NETWORK,
            f"the download of {where} failed: {shorten(reason, MAX_REASON)}. The next attempt resumes it. Pods must "
            f"reach the hub, or the mirror in the variable {ENDPOINT_VARIABLE}.",
            path=self.field,
            value=self.name,
            fatal=False,
        )


def _load_client() -> Any:
    """Return the module of the client."""
    for name, value in CLIENT_OPTIONS.items():
        os.environ.setdefault(name, value)
    # Imported here, because the client reads the environment when it is imported.
    import huggingface_hub  # noqa: PLC0415

    return huggingface_hub


def _endpoint() -> str | None:
    return os.environ.get(ENDPOINT_VARIABLE)
