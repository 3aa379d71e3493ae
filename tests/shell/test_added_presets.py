"""Presets of an administrator: they can be named where they are valid, and are left out by name where not."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import spec_manifest
from trainingjob_api.presets.registry import PRESETS
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.validation.validate import validate_job
from trainingjob_operator.shell.added_presets import PresetTable, load_presets, read_presets

MODEL: dict[str, Any] = {"vocabSize": 512, "embedDim": 64, "mlpDim": 192, "numLayers": 2, "numHeads": 4}
ROW: dict[str, Any] = {"model": MODEL, "context": 128}


def test_a_preset_has_its_parameters_counted() -> None:
    table = read_presets({"team-tiny": ROW | {"source": "https://wiki.example", "note": "for tests"}})

    assert table.invalid_rows == ()
    preset = table.presets["team-tiny"]
    assert (preset.parameters, preset.context, preset.model) == (172_352, 128, MODEL)
    assert (preset.source, preset.note) == ("https://wiki.example", "for tests")
    assert set(table.presets) == {*PRESETS, "team-tiny"}


def test_a_preset_may_override_a_built_in_one() -> None:
    smaller = read_presets({"team-1b": {"model": {"preset": "llama3.1-8b", "numLayers": 4}, "context": 8192}})

    built_in = PRESETS["llama3.1-8b"]
    assert smaller.presets["team-1b"].model == built_in.model | {"numLayers": 4}
    assert smaller.presets["team-1b"].parameters < built_in.parameters


def test_a_job_names_an_added_preset() -> None:
    catalog = Catalog(presets=read_presets({"team-tiny": ROW}).presets)
    spec = spec_manifest() | {"model": {"preset": "team-tiny", "numLayers": 4}}

    checked = validate_job("demo", spec, catalog)
    unknown = validate_job("demo", spec)

    assert checked.spec
    assert (checked.spec.model.embed_dim, checked.spec.model.num_layers) == (64, 4)
    assert checked.problems == ()
    assert "team-tiny is not a preset" in str(unknown.problems[0])


INVALID: dict[str, tuple[str, Any, str]] = {
    "a name with capitals": ("Team", ROW, "the name must be at most 63 lower-case letters, digits, '.' and '-'."),
    "a long name": ("a" * 64, ROW, "the name must be at most 63"),
    "a built-in name": ("llama3.1-8b", ROW, "is a built-in preset, which never changes. Choose another name."),
    "no object": ("team", [1], "the row: Input should be"),
    "no model": ("team", {"context": 128}, "model: Field required."),
    "an unknown field": ("team", ROW | {"size": 1}, "size: Extra inputs are not permitted."),
    "a missing dim": (
        "team",
        {"model": {key: MODEL[key] for key in MODEL if key != "numHeads"}, "context": 1},
        "model.numHeads: ",
    ),
    "a wrong type": ("team", {"model": MODEL | {"numLayers": "two"}, "context": 128}, "model.numLayers: "),
    "dims that do not divide": ("team", {"model": MODEL | {"numKvHeads": 3}, "context": 128}, "model.numKvHeads: "),
    "an unknown preset": ("team", {"model": {"preset": "lama"}, "context": 128}, "model.preset: lama is not a preset."),
    "an infinite context": ("team", ROW | {"context": 2**25}, "context: Input should be less than"),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_preset_is_left_out_with_its_reason(name: str) -> None:
    key, row, reason = INVALID[name]

    table = read_presets({key: row, "good": ROW})

    (refused,) = table.invalid_rows
    assert (refused.table, refused.name) == ("presets", key)
    assert refused.reason.startswith(reason), refused.reason
    assert str(refused) == f"presets.{key}: {refused.reason}"
    assert set(table.presets) == {*PRESETS, "good"}


def test_presets_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "presets.yaml"
    path.write_text("team: {model: {preset: gpt2, numLayers: 2}, context: 1024}\n")

    assert "team" in load_presets(path).presets
    assert load_presets(None) == PresetTable()


def test_a_file_that_is_no_map_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "presets.yaml"
    path.write_text("- team")

    table = load_presets(path)

    assert table.presets == dict(PRESETS)
    assert [str(row) for row in table.invalid_rows] == ["presets: must be a map from names to presets."]
