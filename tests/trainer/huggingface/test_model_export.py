"""Exported folders: the configuration is that of the source, and a failure names the folder."""

import errno
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.huggingface import Fixture
from tests.support.trainer.meeting import together
from tests.support.trainer.object_store import ObjectStore
from tests.support.trainer.texts import grow
from tests.support.trainer.training import spec_with
from tests.trainer.huggingface.test_numerics import FAMILIES
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.tokenizer import ChatTemplate, Tokenizer
from trainingjob_trainer.huggingface.companion_files import FOLDER, keep_companions
from trainingjob_trainer.huggingface.export_weights import gather_from
from trainingjob_trainer.huggingface.model_export import ExportTarget, export_model
from trainingjob_trainer.huggingface.weights_folder import open_weights
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup

ALONE = ProcessGroup(0, 1)
OWN_KEYS = {"max_position_embeddings", "bos_token_id", "eos_token_id"}
"""Fields that a job knows only from the source of its weights."""


def spec_of(fixture: Fixture, **changes: Any) -> TrainingJobSpec:
    return spec_with().model_copy(update={"model": fixture.model, **changes})


def export(fixture: Fixture, own: ObjectStore, dtype: str = "float32", **changes: Any) -> ObjectStore:
    store = ObjectStore()
    export_model(spec_of(fixture, **changes), gather_from(fixture.load()), own, ExportTarget(store, dtype), ALONE)
    return store


def config_of(store: ObjectStore) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(store.objects["config.json"])
    return content


def job_with(fixture: Fixture, **changes: Any) -> ObjectStore:
    """Return the store of a job that started from a fixture, whose kept configuration is changed."""
    own = ObjectStore()
    keep_companions(fixture.weights.store, own)
    name = f"{FOLDER}/config.json"
    own.objects[name] = json.dumps(json.loads(own.objects[name]) | changes).encode()
    return own


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_a_configuration_is_that_of_the_source(name: str) -> None:
    fixture = Fixture(name)

    fresh, kept = config_of(export(fixture, ObjectStore())), config_of(export(fixture, job_with(fixture)))

    want = {key: value for key, value in fixture.config.items() if value is not None and key not in OWN_KEYS}
    assert {key: value for key, value in fresh.items() if key in want} == {
        key: want[key] for key in fresh.keys() & want
    }
    rope = {"rope_parameters", "dtype"}  # these have an older form
    assert {key: kept[key] for key in want.keys() - rope} == {key: want[key] for key in want.keys() - rope}
    assert [kept[key] for key in ("bos_token_id", "eos_token_id")] == [1, 2]
    assert [fresh[key] for key in ("bos_token_id", "eos_token_id")] == [None, None]


def test_a_table_of_positions_has_the_length_of_its_rows() -> None:
    config = config_of(export(Fixture("gpt2"), ObjectStore()))

    assert config["n_positions"] == 48
    assert "max_position_embeddings" not in config


def test_the_configuration_of_other_initial_weights_gives_only_the_ids_of_tokens() -> None:
    llama = Fixture("llama")
    own = job_with(llama, model_type="mamba", hidden_act="relu", eos_token_id=7)

    config = config_of(export(llama, own))

    assert (config["model_type"], config["hidden_act"], config["eos_token_id"]) == ("llama", "silu", 7)


def test_kinds_of_layers_of_the_source_are_not_kept_for_one_window() -> None:
    mistral = Fixture("mistral")

    config = config_of(export(mistral, job_with(mistral, layer_types=["sliding_attention", "full_attention"])))

    assert config["sliding_window"] == 12
    assert "layer_types" not in config  # `transformers` would read another model


def test_fields_that_describe_other_weights_or_files_are_left_out() -> None:
    qwen = Fixture("qwen3")
    kinds = ["full_attention"] * (qwen.model.num_layers + 1)
    own = job_with(qwen, layer_types=kinds, auto_map={"AutoConfig": "own.Config"}, max_position_embeddings=None)

    config = config_of(export(qwen, own))

    assert not config.keys() & {"layer_types", "auto_map"}
    assert config["max_position_embeddings"] == spec_of(qwen).training.sequence_length


def test_numbers_have_the_format_of_the_export() -> None:
    store = export(Fixture("llama"), job_with(Fixture("llama"), quantization_config={"bits": 4}), "bfloat16")

    assert config_of(store)["torch_dtype"] == "bfloat16"
    assert "quantization_config" not in config_of(store)
    assert {entry.dtype for entry in open_weights(store).tensors.values()} == {"BF16"}


def test_weights_of_an_earlier_export_are_deleted() -> None:
    fixture, store = Fixture("llama"), ObjectStore()
    store.objects = {
        "model-00001-of-00002.safetensors": b"",
        "model.safetensors.index.json": b"{}",
        "README.md": b"mine",
    }

    export_model(spec_of(fixture), gather_from(fixture.load()), ObjectStore(), ExportTarget(store, "float32"), ALONE)

    assert store.objects.keys() == {"config.json", "model.safetensors", "README.md"}


def test_a_tokenizer_that_this_machine_lacks_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = Tokenizer(type="tokenizers", path=str(tmp_path / "tokenizer.json"))

    store = export(Fixture("llama"), ObjectStore(), tokenizer=tokenizer)

    assert "tokenizer_config.json" not in store.objects
    assert "exported without a tokenizer" in caplog.text


def write_folder(path: Path) -> None:
    files = {"tokenizer.json": "{}", "tokenizer_config.json": '{"bos_token": "<s>"}', "chat_template.jinja": "folder"}
    grow(path, **files, **{"README.md": "", "own.jinja": "own"})


def test_a_folder_of_a_tokenizer_is_exported_with_its_template(tmp_path: Path) -> None:
    write_folder(tmp_path)
    tokenizer = Tokenizer(type="huggingFace", path=str(tmp_path))
    own = tokenizer.model_copy(update={"chat_template": ChatTemplate(path=str(tmp_path / "own.jinja"))})

    store = export(Fixture("llama"), ObjectStore(), tokenizer=tokenizer)
    replaced = export(Fixture("llama"), ObjectStore(), tokenizer=own)

    assert store.objects["tokenizer_config.json"] == b'{"bos_token": "<s>"}'
    assert store.objects["chat_template.jinja"] == b"folder"
    assert "README.md" not in store.objects
    assert replaced.objects["chat_template.jinja"] == b"own"


def test_a_file_of_a_tokenizer_is_exported_with_the_tokens_of_the_spec(tmp_path: Path) -> None:
    write_folder(tmp_path)
    tokenizer = Tokenizer(
        type="tokenizers",
        path=str(tmp_path / "tokenizer.json"),
        begin_of_document="<s>",
        end_of_document="</s>",
        chat_template=ChatTemplate(path=str(tmp_path / "own.jinja")),
    )

    store = export(Fixture("llama"), ObjectStore(), tokenizer=tokenizer)

    options = json.loads(store.objects["tokenizer_config.json"])
    assert (options["bos_token"], options["eos_token"]) == ("<s>", "</s>")
    assert store.objects["chat_template.jinja"] == b"own"


def test_a_template_of_the_spec_replaces_that_of_the_initial_weights(tmp_path: Path) -> None:
    write_folder(tmp_path)
    kept = ObjectStore()
    kept.objects = {"huggingface/tokenizer.json": b"kept", "huggingface/chat_template.jinja": b"kept"}
    plain = Tokenizer(type="huggingFace", path=str(tmp_path))
    own = plain.model_copy(update={"chat_template": ChatTemplate(path=str(tmp_path / "own.jinja"))})

    stores = [export(Fixture("llama"), kept, tokenizer=tokenizer) for tokenizer in (plain, own)]

    assert [one.objects["tokenizer.json"] for one in stores] == [b"kept"] * 2
    assert [one.objects["chat_template.jinja"] for one in stores] == [b"kept", b"own"]


def test_a_template_that_this_machine_lacks_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = Tokenizer(chat_template=ChatTemplate(path=str(tmp_path / "none.jinja")))

    store = export(Fixture("llama"), ObjectStore(), tokenizer=tokenizer)

    assert "chat_template.jinja" not in store.objects
    assert "exported without a tokenizer: the template cannot be read" in caplog.text


def test_a_model_of_no_architecture_is_a_failure() -> None:
    fixture = Fixture("llama")
    params = fixture.load()
    logits = fixture.model.logits.model_copy(update={"scale": 0.5})
    fixture.model = fixture.model.model_copy(update={"logits": logits})

    with pytest.raises(TrainingError, match="no supported architecture") as caught:
        export_model(
            spec_of(fixture), gather_from(params), ObjectStore(), ExportTarget(ObjectStore(), "float32"), ALONE
        )

    assert caught.value.path == "spec.model"


class BrokenStore(ObjectStore):
    """A store that refuses an object."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__()
        self.refused, self.number = name, number

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        if name == self.refused:
            raise OSError(self.number, "No space left on device")
        super().write(name, chunks)


@pytest.mark.parametrize("name", ["model-00002-of-00004.safetensors", "config.json"])
@pytest.mark.parametrize(("number", "is_fatal"), [(errno.ENOSPC, False), (errno.EACCES, True)])
def test_all_processes_fail_together_if_one_cannot_write(name: str, number: int, is_fatal: bool) -> None:
    fixture = Fixture("llama")
    gather = gather_from(fixture.load())
    store = BrokenStore(name, number)

    def act(peers: ProcessGroup) -> TrainingError:
        with pytest.raises(TrainingError) as caught:
            export_model(spec_of(fixture), gather, ObjectStore(), ExportTarget(store, "float32", 10_000), peers)
        return caught.value

    errors = together(2, act)

    for error in errors:
        assert "the export of the weights failed: No space left on device." in str(error)
        assert (error.reason, error.fatal) == (FailureReason.STORAGE, is_fatal)
        assert (error.path, error.value) == ("spec.checkpoint.export.huggingFace.uri", "mem://bucket")
    assert "model.safetensors.index.json" not in store.objects
