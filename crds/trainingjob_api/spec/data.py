"""The data section: sources of training text."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import ShortName, Strict
from trainingjob_api.globs import MAX_GLOB

Glob = Annotated[str, Field(min_length=1, max_length=MAX_GLOB)]
DEFAULT_PATTERNS = {"text": "**/*.txt", "jsonl": "**/*.jsonl"}
DEFAULT_COLUMN = "text"


class TextSource(Strict):
    """UTF-8 files under one path: text, or JSON Lines."""

    name: ShortName = Field(description="Names the source in messages and metrics.")
    type: Literal["text", "jsonl"] = Field(
        default="text",
        description="Format of the files. `text`: each file is one document. `jsonl`: each line is a JSON object, and "
        "one of its fields is a document.",
    )
    path: Annotated[str, Field(pattern=r"^(/|python:).*$", max_length=1024)] = Field(
        description="An absolute path in the pod: a file, or a folder that is searched, symbolic links included. "
        "`python:SUB` is the folder SUB of the image's Python standard library, which every image has; "
        "`python:` is all of it."
    )
    pattern: Glob | None = Field(
        default=None,
        description="Which files of a folder to read, as a glob; default `**/*.txt`, and `**/*.jsonl` for `jsonl`. "
        "`**` stands for any number of folders. Hidden names match only where the pattern names them.",
    )
    exclude: tuple[Glob, ...] = Field(
        default=(), max_length=16, description="Globs of files to leave out, relative to `path`."
    )
    column: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        default=None, description="Field of a record that holds the document; default `text`. Only for `jsonl`."
    )

    @property
    def glob(self) -> str:
        """Return the pattern of the files to read."""
        return self.pattern or DEFAULT_PATTERNS[self.type]


class Data(Strict):
    """Training data."""

    train: tuple[TextSource, ...] = Field(  # no list-map: the order of the list determines the order of the data
        min_length=1,
        max_length=16,
        description="Sources of training text. Each is read in proportion to its size, in an order that only `seed` "
        "decides.",
    )
