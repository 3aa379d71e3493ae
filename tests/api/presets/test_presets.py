"""Presets: their parameters are those that are published, and what they mean never changes."""

import pytest

from trainingjob_api.network.resolve import resolve
from trainingjob_api.presets.preset import Preset, index
from trainingjob_api.presets.registry import PRESETS
from trainingjob_api.spec.model import Model


def model_of(preset: Preset) -> Model:
    return Model.model_validate(preset.model)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS.keys())
def test_a_preset_has_its_published_number_of_parameters(preset: Preset) -> None:
    assert resolve(model_of(preset)).num_parameters == preset.parameters


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS.keys())
def test_a_preset_is_written_as_users_write_it(preset: Preset) -> None:
    names = {field.alias for field in Model.model_fields.values()}

    assert set(preset.model) <= names


def test_two_presets_of_one_name_are_rejected() -> None:
    preset = next(iter(PRESETS.values()))

    with pytest.raises(ValueError, match=f"preset {preset.name}: the name must be unique"):
        index([preset, preset])
