"""Presets that an administrator adds. A built-in preset cannot be replaced: it never changes its meaning."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from trainingjob_api.base import Strict
from trainingjob_api.network.resolve import resolve
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.presets.merge import merge_preset
from trainingjob_api.presets.preset import Preset
from trainingjob_api.presets.registry import PRESETS
from trainingjob_api.problem import Problem, in_order
from trainingjob_api.sample import SAMPLE
from trainingjob_api.spec.model import Model
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.validation import validate_experts, validate_layers, validate_model
from trainingjob_operator.core.validation.rule import apply_rules
from trainingjob_operator.shell.added_values import InvalidRow, Table, check_rows, describe_error, read_rows

TABLE: Table = "presets"
MAX_NAME = 63
MODEL_RULES = (*validate_model.RULES, *validate_layers.RULES, *validate_experts.RULES)
_NAME = re.compile(r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")


class PresetRow(Strict):
    """One preset; `trainingjob_api.presets.preset.Preset` documents the fields."""

    model: dict[str, Any]
    """The `model` section. With a `preset`, it overrides that built-in one."""
    context: Annotated[int, Field(ge=1, le=2**24)]
    source: Annotated[str, Field(max_length=256)] = ""
    note: Annotated[str, Field(max_length=256)] = ""


@dataclass(frozen=True)
class PresetTable:
    """The resulting presets, and the rows that they do not include."""

    presets: dict[str, Preset] = field(default_factory=lambda: dict(PRESETS))
    invalid_rows: tuple[InvalidRow, ...] = ()


def load_presets(path: Path | None) -> PresetTable:  # None: only built-in presets
    """Return the built-in presets with those of a file. An invalid file is reported and raises nothing."""
    return _add_rows(read_rows(TABLE, path)) if path else PresetTable()


def read_presets(content: Any) -> PresetTable:
    """Return the built-in presets with those of a map from names to rows."""
    return _add_rows(check_rows(TABLE, content))


def _add_rows(added: dict[str, Any] | InvalidRow) -> PresetTable:
    if isinstance(added, InvalidRow):
        return PresetTable(invalid_rows=(added,))
    results = [_read_row(name, raw) for name, raw in added.items()]
    presets = {preset.name: preset for preset in results if isinstance(preset, Preset)}
    return PresetTable({**PRESETS, **presets}, tuple(row for row in results if isinstance(row, InvalidRow)))


def _read_row(name: str, raw: Any) -> Preset | InvalidRow:
    if not _NAME.match(name) or len(name) > MAX_NAME:
        return InvalidRow(TABLE, name, f"the name must be at most {MAX_NAME} lower-case letters, digits, '.' and '-'.")
    if name in PRESETS:
        return InvalidRow(TABLE, name, "is a built-in preset, which never changes. Choose another name.")
    try:
        row = PresetRow.model_validate(raw)
    except ValidationError as error:
        return InvalidRow(TABLE, name, describe_error(error))
    section, unknown = merge_preset(row.model, PRESETS)
    problems = [unknown] if unknown else _find_problems(section, row.context)
    if problems:
        return InvalidRow(TABLE, name, " ".join(str(problem).removeprefix("spec.") for problem in problems))
    section.pop("preset", None)
    parameters = resolve(Model.model_validate(section)).num_parameters
    return Preset(name, row.source, parameters, row.context, section, row.note)


def _find_problems(section: dict[str, Any], context: int) -> list[Problem]:
    """Return the problems of a model section in a job with sequences of the preset's length."""
    training = SAMPLE["training"] | {"sequenceLength": context}
    job = {name: value for name, value in SAMPLE.items() if name != "program"}  # a program has no model
    parsed = parse_spec(job | {"model": section, "training": training})
    problems = (*parsed.problems, *apply_rules(MODEL_RULES, parsed, BUILTIN))
    return in_order(problem for problem in problems if problem.path.startswith("spec.model"))
