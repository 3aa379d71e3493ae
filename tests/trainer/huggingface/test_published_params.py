"""Start from published weights: which folders are accepted, and the failure that names the cause and the field."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.huggingface import Fixture, all_axes_mesh
from tests.support.trainer.object_store import ObjectStore
from tests.trainer.huggingface.test_safetensors import encode
from trainingjob_api.network.resolve import resolve
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.checkpoint import HuggingFaceSource, InitializeFrom
from trainingjob_api.spec.model import Model
from trainingjob_trainer.huggingface.published_params import PublishedParams, load_published_params
from trainingjob_trainer.huggingface.weights_folder import open_weights
from trainingjob_trainer.models.base_params import BaseParams
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.opening import open_store

PATH_FIELD = "spec.checkpoint.initializeFrom.huggingFace.path"
PARTIAL_FIELD = "spec.checkpoint.initializeFrom.allowPartial"
HALF = 0.5


def random_params(shapes: Params) -> Params:
    return jax.tree.map(lambda leaf: jax.device_put(np.full(leaf.shape, HALF, leaf.dtype), leaf.sharding), shapes)


def load(
    folder: Path, fixture: Fixture, own: Path | None = None, *, allow_partial: bool = False, **changes: Any
) -> PublishedParams:
    source = InitializeFrom(hugging_face=HuggingFaceSource(path=str(folder)), allow_partial=allow_partial)
    fixture.model = fixture.model.model_copy(update=changes)
    shapes = fixture.shapes(all_axes_mesh())
    store = open_store(own) if own else ObjectStore()
    base = BaseParams(resolve(fixture.model), shapes, jnp.float32)
    return load_published_params(source, fixture.model, base, random_params(shapes), store, is_leader=own is not None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of a published model, with a tokenizer."""
    copied = tmp_path / "llama"
    shutil.copytree(Fixture("llama").folder, copied)
    (copied / "tokenizer.json").write_text("{}")
    (copied / "README.md").write_text("large")
    return copied


def edit(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Change the tensors of a folder."""
    weights = open_weights(open_store(folder))
    tensors = {
        name: weights.read(name, tuple((0, size) for size in entry.shape)) for name, entry in weights.tensors.items()
    }
    change(tensors)
    (folder / "model.safetensors").write_bytes(encode(tensors))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_parameters_are_those_of_the_files_and_small_files_are_kept(folder: Path, tmp_path: Path) -> None:
    fixture = Fixture("llama")

    found = load(folder, fixture, tmp_path / "run")

    want = fixture.load()
    assert jax.tree.all(jax.tree.map(np.array_equal, found.params, want))
    assert found.source == f"21 tensors of {folder}"
    kept = {path.name for path in (tmp_path / "run/huggingface").iterdir()}
    assert kept == {"config.json", "generation_config.json", "tokenizer.json"}


def test_tensors_that_are_missing_start_random_if_allowed(folder: Path) -> None:
    edit(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))

    found = load(folder, Fixture("llama"), allow_partial=True)

    up, want = np.asarray(found.params["layers"]["mlp"]["up"]), Fixture("llama").load()
    assert (up[1] == HALF).all()
    assert np.array_equal(up[0], np.asarray(want["layers"]["mlp"]["up"])[0])
    assert np.array_equal(found.params["layers"]["mlp"]["gate"], want["layers"]["mlp"]["gate"])
    assert found.source == f"20 tensors of {folder}; missing there, so they start random: layers.mlp.up in part"


def test_a_deeper_model_has_the_layers_of_the_files_first(folder: Path) -> None:
    found = load(folder, Fixture("llama"), allow_partial=True, num_layers=3)

    want = Fixture("llama").load()
    query = np.asarray(found.params["layers"]["attention"]["query"])
    assert np.array_equal(query[:2], want["layers"]["attention"]["query"])
    assert (query[2] == HALF).all()
    assert found.source.startswith(f"21 tensors of {folder}; missing there, so they start random: layers.")
    assert "spec.model.numLayers is 3, not 2" in found.source


def test_a_tensor_without_any_part_in_the_files_starts_random(folder: Path) -> None:
    edit(folder, lambda tensors: tensors.pop("lm_head.weight"))

    found = load(folder, Fixture("llama"), allow_partial=True)

    assert (np.asarray(found.params["head"]) == HALF).all()
    assert found.source == f"20 tensors of {folder}; missing there, so they start random: head"


def test_tensors_of_the_files_alone_are_reported(folder: Path) -> None:
    edit(folder, lambda tensors: tensors.update(adapter=np.zeros(3, np.float32)))

    assert load(folder, Fixture("llama")).source == f"21 tensors of {folder}; not used: adapter"


def test_names_may_lack_the_prefix_of_a_family_and_have_its_derived_tensors(tmp_path: Path) -> None:
    fixture, folder = Fixture("gpt2"), tmp_path / "gpt2"
    shutil.copytree(fixture.folder, folder)

    def rename_all(tensors: dict[str, np.ndarray]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = np.ones((1, 1, 4, 4), np.float32)

    edit(folder, rename_all)

    found = load(folder, Fixture("gpt2"))

    assert jax.tree.all(jax.tree.map(np.array_equal, found.params, fixture.load()))
    assert found.source == f"28 tensors of {folder}"


def test_a_model_that_computes_another_way_is_reported(folder: Path) -> None:
    edit_config(folder, rope_theta=5e5, rope_parameters=None)

    found = load(folder, Fixture("llama"))

    assert found.source.endswith("this job computes another way: spec.model.rope.theta is 10000.0, not 500000.0")


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def rename(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights.safetensors")


def link(folder: Path, name: str = "model.safetensors") -> None:
    (folder / name).rename(folder / "blob")
    (folder / name).symlink_to(folder / "blob")


Q0 = "model.layers.0.self_attn.q_proj.weight"
ERRORS: dict[str, tuple[Callable[[Path], object], dict[str, Any], FailureReason, str, str]] = {
    "no folder": (
        shutil.rmtree,
        {},
        FailureReason.CONFIG,
        PATH_FIELD,
        "has neither model.safetensors.index.json nor model.safetensors.",
    ),
    "no configuration": (
        lambda folder: (folder / "config.json").unlink(),
        {},
        FailureReason.CONFIG,
        PATH_FIELD,
        "cannot be used: config.json is missing",
    ),
    "an unknown architecture": (
        lambda folder: edit_config(folder, model_type="mamba"),
        {},
        FailureReason.CONFIG,
        PATH_FIELD,
        'config.json: `model_type` is "mamba", and must be one of:',
    ),
    "an option that no model section expresses": (
        lambda folder: edit_config(folder, hidden_act="relu6"),
        {},
        FailureReason.CONFIG,
        PATH_FIELD,
        'config.json: `hidden_act` is "relu6"',
    ),
    "an illegal dim": (
        lambda folder: edit_config(folder, hidden_size=0),
        {},
        FailureReason.CONFIG,
        PATH_FIELD,
        "config.json: `embedDim` has an unsupported value: Input should be greater than or equal to 1",
    ),
    "truncated": (truncate, {}, FailureReason.CONFIG, PATH_FIELD, "model.safetensors is truncated"),
    "renamed": (rename, {}, FailureReason.CONFIG, PATH_FIELD, "It has: weights.safetensors."),
    "a link": (link, {}, FailureReason.CONFIG, PATH_FIELD, "model.safetensors is not a regular file. Links to a"),
    "a configuration that is a link": (
        lambda folder: link(folder, "config.json"),
        {},
        FailureReason.CONFIG,
        PATH_FIELD,
        "config.json is not a regular file",
    ),
    "a missing tensor": (
        lambda folder: edit(folder, lambda tensors: tensors.pop(Q0)),
        {},
        FailureReason.CONFIG,
        PARTIAL_FIELD,
        f"holds the weights of another model: {Q0} is missing. Set {PARTIAL_FIELD} to true to start with random values",
    ),
    "a renamed tensor": (
        lambda folder: edit(folder, lambda tensors: tensors.update(wrong=tensors.pop(Q0))),
        {},
        FailureReason.CONFIG,
        PARTIAL_FIELD,
        f"{Q0} is missing",
    ),
    "numbers in an unsupported format": (
        lambda folder: edit_header(folder, Q0, dtype="F8_E5M2"),
        {"allow_partial": True},
        FailureReason.CONFIG,
        "spec.model",
        f"{Q0} has the format F8_E5M2, not one of F64, F32, F16, BF16",
    ),
    "another vocabulary": (
        lambda folder: None,
        {"vocab_size": 96, "allow_partial": True},
        FailureReason.CONFIG,
        "spec.model",
        "lm_head.weight is 64x16, not 96x16. Differences: spec.model.vocabSize is 96, not 64. Set the section model to",
    ),
    "other heads": (
        lambda folder: None,
        {"num_kv_heads": 4},
        FailureReason.CONFIG,
        "spec.model",
        "spec.model.numKvHeads is 4, not 2",
    ),
    "more layers": (
        lambda folder: None,
        {"num_layers": 3},
        FailureReason.CONFIG,
        "spec.model",
        "model.layers.2.input_layernorm.weight is missing; ",
    ),
    "tied embeddings in the files": (
        lambda folder: (
            edit(folder, lambda tensors: tensors.pop("lm_head.weight")),
            edit_config(folder, tie_word_embeddings=True),
        ),
        {},
        FailureReason.CONFIG,
        "spec.model",
        "lm_head.weight is missing. Differences: spec.model.tieEmbeddings is false, not true.",
    ),
    "options of another architecture": (
        lambda folder: None,
        {"attention": Model.model_fields["attention"].default.model_copy(update={"query_key_norm": "perHead"})},
        FailureReason.CONFIG,
        "spec.model",
        "they have nothing for layers.attention.query_norm.scale; they have nothing for",
    ),
}


def edit_header(folder: Path, tensor: str, **changes: Any) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header[tensor] |= changes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


@pytest.mark.parametrize(("change", "options", "reason", "field", "message"), ERRORS.values(), ids=ERRORS)
def test_an_unusable_folder_is_a_failure_that_names_cause_and_field(
    change: Callable[[Path], object],
    options: dict[str, Any],
    reason: FailureReason,
    field: str,
    message: str,
    folder: Path,
) -> None:
    change(folder)

    with pytest.raises(TrainingError) as caught:
        load(folder, Fixture("llama"), **options)

    assert message in str(caught.value)
    assert (caught.value.reason, caught.value.path) == (reason, field)
    assert str(folder) in str(caught.value)
