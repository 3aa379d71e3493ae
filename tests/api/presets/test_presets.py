"""Presets: their parameters are those that are published, and what they mean never changes."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainingjob_api.huggingface.registry import write_config
from trainingjob_api.network.fingerprint import fingerprint
from trainingjob_api.network.resolve import resolve
from trainingjob_api.presets.preset import Preset, index
from trainingjob_api.presets.registry import PRESETS, UNSUPPORTED
from trainingjob_api.spec.model import Model

HASHES = Path(__file__).parents[2] / "golden/presets.txt"
MAXTEXT = """
llama2-{7b,13b,70b} llama3-{8b,70b} llama3.1-{8b,8b-Instruct,70b,70b-Instruct,405b} llama3.3-70b llama4-17b-{16e,128e}
mistral-7b mixtral-{8x7b,8x22b} deepseek2-{16b,236b} deepseek3-{671b,671b-2dfsdp,671b-batchsplit,test,tiny}
deepseek3.2-671b deepseek-custom kimi-k2-1t gemma-{2b,7b} gemma2-{2b,9b,27b} gemma3-{4b,12b,27b} gemma4-{26b,31b}
qwen2.5-{1.5b,7b,14b}
qwen3-{0.6b,1.7b,1.7b-base,4b,4b-base,4b-thinking-2507,8b,8b-base,14b,14b-base,32b,30b-a3b,30b-a3b-base,235b-a22b}
qwen3-{480b-a35b,next-80b-a3b,omni-30b-a3b,custom-30b-a3b} qwen3.5-397b-a17b gpt3-{52k,6b,22b,175b}
gpt-oss-{20b,120b} olmo3-{7b,7b-pt,32b}
"""
"""Names of MaxText's presets, apart from `default`, which is no published model."""

NO_ARCHITECTURE = {"smollm3-3b", "gpt3-52k", "gpt3-6b", "gpt3-22b", "gpt3-175b"}
"""Presets whose architecture has no table of fields and tensors for Hugging Face files."""

each_preset = pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS.keys())


def expand(names: str) -> Iterator[str]:
    for name in names.split():
        before, _, rest = name.partition("{")
        for one in rest.removesuffix("}").split(","):
            yield f"{before}{one}"


def model_of(preset: Preset) -> Model:
    return Model.model_validate(preset.model)


@each_preset
def test_a_preset_has_its_published_number_of_parameters(preset: Preset) -> None:
    assert resolve(model_of(preset)).num_parameters == preset.parameters


def test_a_preset_never_changes_its_meaning(golden: Callable[[Path, str], None]) -> None:
    golden(HASHES, "".join(f"{fingerprint(resolve(model_of(preset)))} {name}\n" for name, preset in PRESETS.items()))


@each_preset
def test_a_preset_sets_only_what_differs_from_the_defaults(preset: Preset) -> None:
    written = model_of(preset).model_dump(mode="json", by_alias=True, exclude_defaults=True)

    assert preset.model.keys() == written.keys()
    assert [name for name in ("norm", "mlp", "logits") if preset.model.get(name) != written.get(name)] == []


@each_preset
def test_a_preset_is_a_model_of_its_hugging_face_architecture(preset: Preset) -> None:
    written = write_config(model_of(preset))

    assert (written is None) == (preset.name in NO_ARCHITECTURE)


@each_preset
def test_no_token_is_dropped(preset: Preset) -> None:
    experts = model_of(preset).experts

    assert experts is None or experts.capacity(preset.context) == preset.context


@each_preset
def test_a_table_of_positions_has_a_row_for_each_token_of_the_longest_sequence(preset: Preset) -> None:
    rows = model_of(preset).max_positions

    assert rows is None or rows >= preset.context


def test_sources_are_addresses() -> None:
    assert [preset.name for preset in PRESETS.values() if not preset.source.startswith("https://")] == []


def test_every_model_of_maxtext_is_a_preset_or_lacks_a_named_part() -> None:
    names = set(expand(MAXTEXT))

    assert len(names) == 67
    assert names - PRESETS.keys() == UNSUPPORTED.keys()
    assert len(names & PRESETS.keys()) == 60


def test_names_are_values_of_yaml() -> None:
    assert [name for name in PRESETS if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9.-]*", name)] == []


def test_two_presets_of_one_name_are_rejected() -> None:
    preset = next(iter(PRESETS.values()))

    with pytest.raises(ValueError, match=f"preset {preset.name}: the name must be unique"):
        index([preset, preset])
