"""The data section: sources of training text."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import ShortName, Strict
from trainingjob_api.globs import MAX_GLOB
from trainingjob_api.meta import Example, Pattern
from trainingjob_api.notation import add_slash

Glob = Annotated[str, Field(min_length=1, max_length=MAX_GLOB)]
DEFAULT_PATTERNS = {"text": "**/*.txt", "jsonl": "**/*.jsonl"}
DEFAULT_COLUMN = "text"


class TextSource(Strict):
    """UTF-8 files under one path: text, or JSON Lines."""

    name: Annotated[ShortName, Example("text")] = Field(description="Name of the source in messages and metrics.")
    format: Annotated[Literal["text", "jsonl"], Example("jsonl")] = Field(
        default="text",
        description="File format: `text` is UTF-8, with one document in each file. `jsonl` is JSON Lines, with one "
        "document in a field of each line.",
    )
    path: Annotated[
        str,
        Pattern(r"^(/|python:).*$", "an absolute path such as /data/text, or python:SUB", add_slash, is_path=True),
        Field(max_length=1024),
        Example("/data/train"),
    ] = Field(
        description="Absolute path in the pod of a file or a folder, symbolic links included. `python:SUB` is folder "
        "SUB of the image's Python standard library, `python:` all of it."
    )
    pattern: Annotated[Glob | None, Example("**/*.jsonl")] = Field(
        default=None,
        description="Glob of the files to read in a folder, default `**/*.txt`, or `**/*.jsonl` for `jsonl`. `**` "
        "matches any number of folders, and hidden names match only if the pattern names them.",
    )
    exclude: Annotated[tuple[Glob, ...], Example(["*.bak"])] = Field(
        default=(), max_length=16, description="Globs of files to exclude, relative to `path`."
    )
    column: Annotated[Annotated[str, Field(min_length=1, max_length=128)] | None, Example("text")] = Field(
        default=None, description="Field of a record that holds the document, for `jsonl` only. Unset: `text`."
    )

    @property
    def glob(self) -> str:
        """Return the pattern of the files to read."""
        return self.pattern or DEFAULT_PATTERNS[self.format]


class Data(Strict):
    """Training data."""

    train: tuple[TextSource, ...] = Field(  # no list-map: the order of the list determines the order of the data
        min_length=1,
        max_length=16,
        description="Sources of training text, each read in proportion to its size. Only `seed` determines the order.",
    )
