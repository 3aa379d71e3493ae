"""The column of a source, which is a field of records or a column of tables: its absence, and invalid text in it."""

import json
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches

from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.runtime.errors import TrainingError

MAX_NAMED_FIELDS = 8
CONTENTS = {
    "column": "text",
    "messages": "conversation",
    "tools": "definitions of tools",
    "prompt": "prompt",
    "completion": "completion",
    "chosen": "preferred answer",
    "rejected": "other answer",
}
"""What a record holds in the field that a field of the source names."""


def find_path(
    file: SourceFile, place: str, field: str, column: str, children: Callable[[tuple[str, ...]], Collection[str]]
) -> tuple[str, ...]:
    """Return the names along which a column lies, outermost first.

    A name may contain dots: `a.b` is the field of that name if there is one, else the field `b` in the field `a`.

    Args:
        file: file with the record or table.
        place: its position in the file, such as `line 3`.
        field: field of the source that names the column.
        column: its name.
        children: returns the names in the field at a path, or none if it has no fields.

    Raises:
        TrainingError: there is no such field. The message names those at the place where the path ends.
    """
    path: tuple[str, ...] = ()
    rest = column
    while rest not in (names := children(path)):
        ends = (end for end, character in enumerate(rest) if character == ".")
        end = next((end for end in ends if rest[:end] in names), None)
        if end is None:
            raise _missing_column_error(file, place, field, column, [".".join((*path, name)) for name in sorted(names)])
        path, rest = (*path, rest[:end]), rest[end + 1 :]
    return (*path, rest)


def _missing_column_error(file: SourceFile, place: str, field: str, column: str, names: Sequence[str]) -> TrainingError:
    """Return the error of a record or table without the column. `names` are fields that it has instead."""
    near = get_close_matches(column, names, 1)
    some = ", ".join(f"`{name}`" for name in names[:MAX_NAMED_FIELDS])
    more = ", ..." if len(names) > MAX_NAMED_FIELDS else ""
    return file.error(
        f"{place} has no field `{column}`. It has {some or 'no fields'}{more}. Set `{field}` to the field that "
        f"holds the {CONTENTS[field]}." + (f" Nearest legal value: {json.dumps(near[0])}." if near else ""),
        field=field,
    )


def check_text(file: SourceFile, place: str, text: bytes | None) -> bytes:
    """Return the text of a row, which is UTF-8 without NUL. `place` names the row and the column.

    Raises:
        TrainingError: the row has no text, or it is not valid.
    """
    if text is None:
        raise file.error(f"{place} must be a string, but is null.")
    if b"\0" in text:
        raise file.error(f"{place} must not contain NUL characters.")
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise file.error(f"{place} must be UTF-8, but byte {error.start} is 0x{text[error.start]:02x}.") from error
    return text
