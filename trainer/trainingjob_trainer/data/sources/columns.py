"""The column of a source, which is a field of records or a column of tables: its absence, and invalid text in it."""

import json
from collections.abc import Callable, Sequence
from difflib import get_close_matches

from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.runtime.errors import TrainingError

MAX_NAMED_FIELDS = 8


def find_path(column: str, children: Callable[[tuple[str, ...]], Sequence[str]]) -> tuple[str, ...]:
    """Return the names along which a column lies, outermost first.

    A name may contain dots: `a.b` is the field of that name if there is one, else the field `b` in the field `a`.
    `children` returns the names in the field at a path, or none if it has no fields.

    Raises:
        KeyError: there is no such field; its argument is the path of the innermost field that there is.
    """

    def find(path: tuple[str, ...], rest: str) -> tuple[str, ...]:
        names = children(path)
        if rest in names:
            return (*path, rest)
        places = (place for place, letter in enumerate(rest) if letter == ".")
        inside = next((place for place in places if rest[:place] in names), None)
        if inside is None:
            raise KeyError(path)
        return find((*path, rest[:inside]), rest[inside + 1 :])

    return find((), column)


def missing_column_error(
    file: SourceFile, place: str, column: str, names: Sequence[str], path: tuple[str, ...] = ()
) -> TrainingError:
    """Return the error of a record or table without the column. `names` are those in the field at a path.

    `place` is its position in the file, such as `line 3`.
    """
    names = [".".join((*path, name)) for name in names]
    near = get_close_matches(column, names, 1)
    some = ", ".join(f"`{name}`" for name in names[:MAX_NAMED_FIELDS])
    more = ", ..." if len(names) > MAX_NAMED_FIELDS else ""
    return file.error(
        f"{place} has no field `{column}`. It has {some or 'no fields'}{more}. Set `column` to the field that "
        "holds the text." + (f" Nearest legal value: {json.dumps(near[0])}." if near else ""),
        field="column",
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
