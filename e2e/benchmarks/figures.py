"""The format of all benchmark results: a table for people, a JSON list for comparison."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent.parent.parent / "build/bench"


@dataclass(frozen=True)
class Figure:
    """One measured value and its reference: a goal, a floor, or another system in the same run."""

    name: str
    value: float
    unit: str
    against: float

    @property
    def ratio(self) -> float:
        """Return the value as a multiple of its reference."""
        return self.value / self.against


def publish(name: str, figures: Sequence[Figure], console: Console) -> None:
    """Print the figures and write them to build/bench/NAME.json."""
    show(f"bench-{name}", figures, console)
    write(name, figures)


def show(title: str, figures: Sequence[Figure], console: Console) -> None:
    """Print figures as a table."""
    table = Table("figure", "value", "unit", "against", "ratio", title=title)
    for figure in figures:
        table.add_row(figure.name, f"{figure.value:.3g}", figure.unit, f"{figure.against:.3g}", f"{figure.ratio:.2f}")
    console.print(table)


def write(name: str, figures: Sequence[Figure]) -> None:
    """Write figures to build/bench/NAME.json, replacing the previous ones."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    rows = [asdict(figure) | {"ratio": round(figure.ratio, 4)} for figure in figures]
    (FOLDER / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
