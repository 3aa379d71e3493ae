"""Reports about a job's text, shown in the status: what the hosts read and skipped, and how far they have come."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from trainingjob_api.base import MAX_SHORT_NAME, Open
from trainingjob_api.world import Count

Epochs = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
MAX_EXAMPLE = 64
MAX_WARNING = 400


class SkipReason(StrEnum):
    """Why a source skips a file or folder below its path."""

    HIDDEN = "hidden"  # the name begins with a dot, or a file system made it; the pattern does not name it
    EXCLUDED = "excluded"  # it matches `exclude`
    OTHER_NAME = "otherName"  # a file that does not match `pattern`
    NOT_SEARCHED = "notSearched"  # a folder in which nothing can match `pattern`
    DUPLICATE = "duplicate"  # the same file or folder, reached by another path
    BROKEN_LINK = "brokenLink"  # a link without a target
    NOT_A_FILE = "notAFile"  # a socket, a pipe or a device
    INSTALLED = "installed"  # not part of Python's standard library itself
    EMPTY = "empty"  # a document without text
    BAD_RECORD = "badRecord"  # a record without a valid document, with `onBadRecord: skip`


class Skipped(Open):
    """Files and folders of a source that were skipped for one reason; a folder counts once."""

    reason: Annotated[str, Field(max_length=32)] = Field(
        description="Why: hidden, excluded, otherName, notSearched, duplicate, brokenLink, notAFile, installed, "
        "empty or badRecord."
    )
    count: Count = Field(description="Number of files and folders.")
    example: Annotated[str, Field(max_length=MAX_EXAMPLE)] = Field(
        default="", description="Path of one of them, relative to the source."
    )


class SourceReport(Open):
    """Text that was read from one source."""

    name: Annotated[str, Field(max_length=MAX_SHORT_NAME)] = Field(description="Name of the source in the spec.")
    evaluation: bool = Field(default=False, description="Whether it is a held-out text of spec.evaluation.")
    files: Count = Field(description="Files that match, without duplicates.")
    documents: Count = Field(description="Number of documents with text.")
    characters: Count = Field(description="Characters of these documents.")
    tokens: Count | None = Field(default=None, description="Tokens of these documents. Unset: not known.")
    rows: Count | None = Field(default=None, description="Sequences that begin in this source. Unset: not known.")
    epochs: Epochs | None = Field(
        default=None,
        description="Number of times that all steps of the job read each sequence. Unset: not training data.",
    )
    commit: Annotated[str, Field(max_length=250)] | None = Field(
        default=None, description="Commit of the data set of the hub. Unset: the source has a path."
    )
    skipped: tuple[Skipped, ...] = Field(default=(), max_length=10, description="Skipped files by reason.")


class PreparationProgress(Open):
    """How much of a job's text is tokenized. Text that was tokenized before counts from the beginning."""

    done_bytes: Count = Field(description="Bytes of the files that are tokenized.")
    total_bytes: Count = Field(description="Bytes of all files that had to be tokenized.")
    documents: Count = Field(default=0, description="Documents in the tokenized files.")
    tokens: Count = Field(default=0, description="Tokens of these documents.")
    tokens_per_second: Rate | None = Field(
        default=None, description="Tokens per second since the hosts began. Unset: not known yet."
    )
    eta_seconds: Count | None = Field(
        default=None, description="Estimated seconds until all files are tokenized. Unset: not known yet."
    )

    @property
    def ratio(self) -> float:
        """Return the tokenized share of the bytes."""
        return min(self.done_bytes / self.total_bytes, 1.0) if self.total_bytes else 1.0


class DataReport(Open):
    """What the hosts read of all sources of a job."""

    tokens: Count = Field(description="Tokens of the training text.")
    rows: Count = Field(description="Number of sequences in the training text.")
    epochs: Epochs = Field(description="Number of times that all steps of the job read each sequence.")
    sources: tuple[SourceReport, ...] = Field(
        default=(), max_length=96, description="Report of each source. Empty: an older trainer did not record it."
    )
    warnings: tuple[Annotated[str, Field(max_length=MAX_WARNING)], ...] = Field(
        default=(), max_length=16, description="Unusual properties of the text."
    )
