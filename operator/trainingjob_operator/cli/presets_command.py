"""`trainingjob presets`: the published models that `spec.model.preset` names, and the model section of one."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal

from rich.table import Table

from trainingjob_api.network.resolve import resolve
from trainingjob_api.presets.preset import Preset
from trainingjob_api.presets.registry import UNSUPPORTED
from trainingjob_api.spec.model import Model
from trainingjob_operator.cli.console import SafeConsole
from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.printing import align, echo
from trainingjob_operator.cli.yaml_output import to_yaml
from trainingjob_operator.core.units import format_count

type Format = Literal["json", "yaml"]

COLUMNS = ("name", "parameters", "active", "layers", "width", "context", "source")
NUMBERS = range(1, 6)
"""Columns that are right-aligned."""
NO_MODEL_SECTION = "Published models that no model section expresses:"


def print_presets(name: str | None, output: Format | None, presets: Mapping[str, Preset]) -> None:
    """Print a table of all presets, or the model section of one.

    Raises:
        UsageError: there is no such preset; the text names the nearest, or what is missing for the model.
    """
    if name:
        _print_preset(_find(name, presets), output)
    elif output:
        supported = [_as_object(preset) for preset in presets.values()]
        unsupported = [{"name": name, "missing": missing} for name, missing in UNSUPPORTED.items()]
        _print_object({"presets": supported, "unsupported": unsupported}, output)
    else:
        _print_table(presets)


def _find(name: str, presets: Mapping[str, Preset]) -> Preset:
    if name in presets:
        return presets[name]
    if name in UNSUPPORTED:
        raise UsageError(f"{name} is no preset, because no model section expresses it. Missing: {UNSUPPORTED[name]}.")
    suggestions = get_close_matches(name, presets, cutoff=0.4)
    hint = f"Nearest: {', '.join(suggestions)}." if suggestions else "`trainingjob presets` lists all."
    raise UsageError(f"{name} must be the name of a preset. {hint}")


def _print_preset(preset: Preset, output: Format | None) -> None:
    """Print one preset: as a section to paste into a job, or with all that is known about it."""
    if output:
        _print_object(_as_object(preset) | {"model": preset.model}, output)
        return
    facts = (f"{preset.name}: {preset.parameters:,} parameters, up to {preset.context:,} tokens", preset.source)
    for line in (*facts, *filter(None, [preset.note])):
        echo(f"# {line}")
    echo(to_yaml({"model": preset.model}), nl=False)


def _print_object(value: Mapping[str, Any], output: Format) -> None:
    echo(json.dumps(value, indent=2) if output == "json" else to_yaml(value).rstrip("\n"))


def _print_table(presets: Mapping[str, Preset]) -> None:
    """Print a row per preset, with lines and colour in a terminal, then the models that are no presets."""
    console = SafeConsole()
    rows = [_describe(preset) for preset in presets.values()]
    if console.is_terminal:
        table = Table(box=None, pad_edge=False)
        for number, column in enumerate(COLUMNS):
            is_source = column == "source"
            table.add_column(
                column,
                justify="right" if number in NUMBERS else "left",
                style="bold" if not number else None,
                no_wrap=not is_source,
                overflow="fold",
            )
        for row in rows:
            table.add_row(*row)
        console.print(table)
    else:
        for line in align([COLUMNS, *rows], right=NUMBERS):
            echo(line)
    for line in ("", NO_MODEL_SECTION, *(f"  {line}" for line in align(list(UNSUPPORTED.items())))):
        echo(line)


def _describe(preset: Preset) -> tuple[str, ...]:
    """Return the cells of a preset's row."""
    facts = _as_object(preset)
    counts = (format_count(facts["parameters"]), format_count(facts["activeParameters"]))
    sizes = (f"{facts[name]:,}" for name in ("layers", "width", "context"))
    return (preset.name, *counts, *sizes, preset.source)


def _as_object(preset: Preset) -> dict[str, Any]:
    """Return a preset as an object, without its model section."""
    model = Model.model_validate(preset.model)
    return {
        "name": preset.name,
        "parameters": preset.parameters,
        "activeParameters": resolve(model).num_active_parameters,
        "layers": model.num_layers,
        "width": model.embed_dim,
        "context": preset.context,
        "source": preset.source,
        "note": preset.note,
    }
