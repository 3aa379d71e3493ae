"""Plain-text tables: aligned columns without wrapping or borders, so that they can be grepped and pasted."""

from collections.abc import Sequence

from trainingjob_operator.cli.printing import escape_controls

GAP = "  "


def align(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Return one line per row. The first row holds the headings; columns in `right` are right-aligned."""
    if not rows:
        return []
    rows = [[escape_controls(cell) for cell in row] for row in rows]  # escaping changes the width
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [_join(row, widths, right) for row in rows]


def _join(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    cells = (
        text.rjust(width) if column in right else text.ljust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=True))
    )
    return GAP.join(cells).rstrip()
