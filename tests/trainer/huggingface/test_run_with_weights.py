"""Worlds of several processes that start from published weights, and export the trained ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.support.trainer.crew import Crew
from tests.support.trainer.huggingface import Fixture
from tests.support.trainer.texts import make_tokenizer
from tests.support.trainer.tiny import make_config, make_spec, make_world
from trainingjob_api.world import RunConfig
from trainingjob_trainer.huggingface.safetensors import TensorEntry
from trainingjob_trainer.huggingface.weights_folder import WeightsFolder, open_weights
from trainingjob_trainer.store.opening import open_store

WORDS = ("<unk>", "</s>", *(f"word{number}" for number in range(60)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "shared/checkpoints"


def make(root: Path, text: Path, fixture: Fixture, **changes: Any) -> RunConfig:
    """Return a job of the model of a fixture, whose learning rate changes no weight."""
    make_tokenizer(root.parents[1] / "tokenizer.json", *WORDS)
    source = {"huggingFace": {"path": str(fixture.folder)}}
    options = {
        "model": fixture.model.model_dump(mode="json", by_alias=True),
        "tokenizer": {"type": "tokenizers", "path": str(root.parents[1] / "tokenizer.json"), "endOfDocument": "</s>"},
        "training__steps": 1,
        "optimizer__learningRate": 1e-40,
        "checkpoint__initializeFrom": source,
        "checkpoint__export": {"huggingFace": {"uri": str(root.parent / "exported")}},
    }
    return make_config(make_spec(root, text, **options | changes))


def content(weights: WeightsFolder, name: str, entry: TensorEntry) -> bytes:
    return weights.read(name, tuple((0, size) for size in entry.shape)).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_weights_that_training_does_not_change_are_exported_as_they_were(
    name: str, crew: Crew, root: Path, text: Path, programs: Path
) -> None:
    fixture = Fixture(name)

    trainers = crew.start(make(root, text, fixture), make_world(1, 2), programs)

    for trainer in trainers:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()
    (source,) = {event.initialized_from for event in trainers[0].events if event.initialized_from}
    assert source == f"{len(fixture.weights.tensors)} tensors of {fixture.folder}"
    exported = open_weights(open_store(root.parent / "exported"))
    assert exported.tensors.keys() == fixture.weights.tensors.keys()
    for tensor, entry in exported.tensors.items():
        assert content(exported, tensor, entry) == content(fixture.weights, tensor, entry), tensor


@pytest.mark.slow
def test_an_export_has_the_configuration_and_the_tokenizer(crew: Crew, root: Path, text: Path, programs: Path) -> None:
    fixture = Fixture("llama")

    (trainer,) = crew.start(make(root, text, fixture), make_world(1, 1), programs)

    assert trainer.wait_for_end() == 0, trainer.tell_logs()
    folder = root.parent / "exported"
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["torch_dtype"], config["max_position_embeddings"]) == ("float32", 64)
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    assert json.loads((folder / "generation_config.json").read_text()) == json.loads(
        (fixture.folder / "generation_config.json").read_text()
    )
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("word3") == 5
    assert json.loads((folder / "tokenizer_config.json").read_text())["eos_token"] == "</s>"


@pytest.mark.slow
def test_each_kept_step_is_exported_by_a_world_of_two(crew: Crew, root: Path, text: Path, programs: Path) -> None:
    fixture = Fixture("llama")
    export = {"huggingFace": {"uri": str(root.parent / "exported"), "when": "kept"}}
    changes = {"training__steps": 4, "checkpoint__export": export, "checkpoint__keep": {"last": 2}}

    trainers = crew.start(make(root, text, fixture, **changes), make_world(1, 2), programs)

    for trainer in trainers:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()
    assert max(event.exported for event in trainers[0].events if event.exported) == 4
    folders = sorted((root.parent / "exported").glob("lineage-0/*"))
    assert [folder.name.partition(".")[0] for folder in folders] == ["2", "4"]
    for folder in folders:
        assert (folder / "export.json").exists()
        exported = open_weights(open_store(folder))
        for tensor, entry in exported.tensors.items():
            assert content(exported, tensor, entry) == content(fixture.weights, tensor, entry), tensor
