"""Plain tables: columns under their headings, never wrapped or boxed, so that they can be grepped and pasted."""

from collections.abc import Sequence

from trainingjob_operator.cli.printing import escape_controls

GAP = "  "


def align(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Return one line a row; the first row holds the headings. Columns in `right` are flush right."""
    if not rows:
        return []
    rows = [[escape_controls(cell) for cell in row] for row in rows]  # before their widths are counted
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [_join(row, widths, right) for row in rows]


def _join(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    cells = (
        text.rjust(width) if column in right else text.ljust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    )
    return GAP.join(cells).rstrip()
