"""Plain tables: columns under their headings, never wrapped or boxed, so that they can be grepped and pasted."""

from collections.abc import Sequence

GAP = "  "


def align(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Return one line a row; the first row holds the headings. Columns in `right` are flush right."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [_join(row, widths, right) for row in rows]


def _join(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    cells = (
        text.rjust(width) if column in right else text.ljust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    )
    return GAP.join(cells).rstrip()
