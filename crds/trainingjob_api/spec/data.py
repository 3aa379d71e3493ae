"""The data section: sources of training text."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import ShortName, Strict
from trainingjob_api.globs import MAX_GLOB

Glob = Annotated[str, Field(min_length=1, max_length=MAX_GLOB)]


class TextSource(Strict):
    """UTF-8 text files under one path; each file is a document."""

    name: ShortName = Field(description="Names the source in messages and metrics.")
    type: Literal["text"] = Field(default="text", description="What kind of files: `text` is UTF-8, a document a file.")
    path: Annotated[str, Field(pattern=r"^(/|python:).*$", max_length=1024)] = Field(
        description="An absolute path in the pod: a file, or a folder that is searched, symbolic links included. "
        "`python:SUB` is the folder SUB of the image's Python standard library, which every image has; "
        "`python:` is all of it."
    )
    pattern: Glob = Field(
        default="**/*.txt",
        description="Which files of a folder to read, as a glob. `**` stands for any number of folders. Hidden names "
        "match only where the pattern names them.",
    )
    exclude: tuple[Glob, ...] = Field(
        default=(), max_length=16, description="Globs of files to leave out, relative to `path`."
    )


class Data(Strict):
    """Training data."""

    train: tuple[TextSource, ...] = Field(  # no list-map: the order of the list determines the order of the data
        min_length=1,
        max_length=16,
        description="Sources of training text. Each is read in proportion to its size, in an order that only `seed` "
        "decides.",
    )
