"""A model that can write text, from a checkpoint folder of a job or from a folder in the format of Hugging Face."""

import atexit
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from trainingjob_api.base import is_bucket
from trainingjob_api.huggingface.registry import find_family
from trainingjob_api.network.resolve import resolve
from trainingjob_api.sharding import RULES
from trainingjob_api.spec.checkpoint import InitializeFrom
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.precision import Precision
from trainingjob_api.spec.tokenizer import HUGGING_FACE, SENTENCE_PIECE, TOKENIZERS, Tokenizer, TokenizerType
from trainingjob_api.weights_exchange import ModelRequest
from trainingjob_trainer.checkpoint.formats.saved_arrays import SavedParams
from trainingjob_trainer.checkpoint.frozen_tensors import find_array_folders
from trainingjob_trainer.checkpoint.initialize import find_intact_step
from trainingjob_trainer.checkpoint.manifest import read_integrity
from trainingjob_trainer.data.model_files import MODEL_FILE, read_model_file
from trainingjob_trainer.data.tokenizers import DocumentEncoder
from trainingjob_trainer.huggingface.companion_files import MAX_BYTES
from trainingjob_trainer.huggingface.export_weights import Gather
from trainingjob_trainer.huggingface.import_weights import add_prefix, import_params, match_tensors
from trainingjob_trainer.huggingface.merge_adapters import merge_adapters
from trainingjob_trainer.huggingface.published_params import read_model
from trainingjob_trainer.huggingface.safetensors import WeightsError
from trainingjob_trainer.huggingface.tokenizer_files import FOLDER_FILES, PIECES_FILE, TOKENIZER_FILE, published_name
from trainingjob_trainer.huggingface.weights_folder import CONFIG_FILE, open_weights, read_json
from trainingjob_trainer.models.decoder import Params, SplitModel
from trainingjob_trainer.models.trainable import tensor_name
from trainingjob_trainer.parallel.mesh import build_mesh, one_replica
from trainingjob_trainer.parallel.sharding import param_shardings
from trainingjob_trainer.sampling.token_programs import decoding_model
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store
from trainingjob_trainer.weights_exchange.export_checkpoint import ALONE, check_shapes
from trainingjob_trainer.weights_exchange.saved_network import find_saved_network

GENERATION_FILE = "generation_config.json"
CONTEXT_KEYS = ("max_position_embeddings", "n_positions")
"""Keys of `config.json` that hold the longest sequence."""
END_KEY = "eos_token_id"
DEFAULT_LENGTH = 2048
"""Longest sequence in which published weights read a text, unless a request has another length."""


@dataclass(frozen=True)
class TextSource:
    """A model with its parameters and its tokenizer."""

    model: SplitModel
    mesh: Mesh
    shapes: Params
    load: Callable[[], Params]
    """Return the parameters. It reads the files, which takes the longest."""
    encoder: DocumentEncoder
    has_special_tokens: bool
    """Whether the tokenizer's file decides what begins a prompt. A job trains on text without that."""
    ends: frozenset[int]
    """Tokens that end a text."""
    context: int | None
    """Longest sequence of the model. None: it is not known."""
    section: Model
    """The model section of a job."""
    tokenizer: Tokenizer
    """The tokenizer section of a job."""
    sequence_length: int
    """Length of the sequences of the training, or one that the model has positions for."""
    step: int | None = None


def open_text_source(request: ModelRequest) -> TextSource:
    """Return the model of a folder.

    Raises:
        ConfigError: no model section expresses a `config.json`.
        WeightsError: the folder is of neither kind, or a file is missing or damaged.
        TrainingError: no step is intact, or the tokenizer cannot be used.
        ValueError: `model.json` cannot be read.
        OSError: a file cannot be read.
    """
    store = open_store(request.path)
    names = {entry.name for entry in store.list_folder()}
    if CONFIG_FILE in names:
        return _open_published(request, store, names)
    if any(name.startswith("lineage-") for name in names):
        return _open_checkpoint(request, store, names)
    raise WeightsError(
        f"{request.path} must be a checkpoint folder of a job, with folders such as lineage-0, or a folder in the "
        f"format of Hugging Face, with {CONFIG_FILE}"
    )


def _open_published(request: ModelRequest, store: Store, names: set[str]) -> TextSource:
    if request.step is not None:
        raise WeightsError(f"{request.path} has no steps: --step is for the checkpoint folder of a job")
    weights = open_weights(store)
    model = read_model(weights)
    precision = Precision(params="float32" if _is_cpu() else "bfloat16", compute=_compute_format())
    family = find_family(weights.config)
    weights, binding = add_prefix(weights, family.optional_prefix), family.bind(resolve(model))
    match = match_tensors(weights, binding, family.derived)
    wrong = [*match.misfits, *(f"{name} is missing" for name in match.missing)]
    if wrong:
        raise WeightsError(f"{request.path} does not fit its {CONFIG_FILE}: {wrong[0]}. `trainingjob import` lists all")
    split, mesh, shapes = _prepare(model, precision)
    folder = _find_tokenizer_folder(store, names)
    tokenizer = Tokenizer(type="tokenizers", path=_find_tokenizer(request, folder, names))
    context = next((weights.config[key] for key in CONTEXT_KEYS if key in weights.config), None)
    generation = read_json(store, GENERATION_FILE) if GENERATION_FILE in names else {}
    return TextSource(
        model=split,
        mesh=mesh,
        shapes=shapes,
        load=lambda: import_params(weights, binding, shapes),
        encoder=DocumentEncoder(tokenizer, model.vocab_size),
        has_special_tokens=True,
        ends=_list_ends({**weights.config, **generation}),
        context=context,
        section=model,
        tokenizer=tokenizer if request.tokenizer else Tokenizer(type=HUGGING_FACE, path=folder),
        sequence_length=min(context or DEFAULT_LENGTH, DEFAULT_LENGTH),
    )


def _open_checkpoint(request: ModelRequest, store: Store, names: set[str]) -> TextSource:
    model_file = read_model_file(store)
    if model_file is None:
        raise WeightsError(
            f"{request.path} has no {MODEL_FILE}, because an older trainer wrote it. Export a step with `trainingjob "
            "export`, and name the exported folder"
        )
    folder = find_intact_step(InitializeFrom(uri=request.path, step=request.step), ALONE)
    manifest, name = read_integrity(folder), f"step {folder.step} of {request.path}"
    saved = SavedParams(*find_array_folders(folder, manifest)[:2])
    network, lora = find_saved_network(saved, model_file.model, manifest.lora if manifest else None, name)
    check_shapes(saved, network, name)
    precision = model_file.precision.model_copy(update={"compute": _compute_format(model_file.precision.compute)})
    split, mesh, shapes = _prepare(model_file.model, precision)
    tokenizer = model_file.tokenizer
    if tokenizer.path:
        tokenizer_folder = _find_tokenizer_folder(store, names)
        path = _find_tokenizer(request, tokenizer_folder, names, published_name(tokenizer))
        is_folder = tokenizer.type == HUGGING_FACE and not request.tokenizer
        changes = {"path": tokenizer_folder} if is_folder else {"path": path, "type": _type_of(path)}
        tokenizer = tokenizer.model_copy(update=changes)
    encoder = DocumentEncoder(tokenizer, model_file.model.vocab_size)
    return TextSource(
        model=split,
        mesh=mesh,
        shapes=shapes,
        load=lambda: _read_params(merge_adapters(saved.read, network, lora), shapes),
        encoder=encoder,
        has_special_tokens=False,
        ends=frozenset(() if encoder.end is None else (encoder.end,)),
        context=model_file.model.max_positions or model_file.sequence_length,
        section=model_file.model,
        tokenizer=tokenizer,
        sequence_length=model_file.sequence_length,
        step=folder.step,
    )


def _prepare(model: Model, precision: Precision) -> tuple[SplitModel, Mesh, Params]:
    """Return the model, a mesh over all devices of this machine, and the shapes of its parameters."""
    accelerator = "cpu" if _is_cpu() else ""
    split = decoding_model(SplitModel(resolve(model).on(accelerator), precision, Memory(remat="none")))
    devices = jax.local_devices()
    mesh = build_mesh(devices, one_replica(len(devices)))
    shardings = param_shardings(split.axes, split.shapes, mesh, RULES)
    shapes: Params = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), split.shapes, shardings
    )
    return split, mesh, shapes


def _read_params(gather: Gather, shapes: Params) -> Params:
    """Return the parameters of which `gather` returns regions."""

    def read(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        def read_shard(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None  # noqa: S101  # the array is not empty
            region = tuple(part.indices(size)[:2] for part, size in zip(index, leaf.shape, strict=True))
            return gather(tensor_name(path), region).astype(leaf.dtype)

        assert leaf.sharding is not None  # noqa: S101  # `_prepare` has set it
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, read_shard)

    params: Params = jax.tree_util.tree_map_with_path(read, shapes)
    return params


def _type_of(path: str) -> TokenizerType:
    """Return the type of a tokenizer by the name of its file."""
    return SENTENCE_PIECE if Path(path).suffix == Path(PIECES_FILE).suffix else TOKENIZERS


def _find_tokenizer_folder(store: Store, names: set[str]) -> str:
    """Return a folder of this machine with the files of a tokenizer below a store."""
    if not is_bucket(store.root):
        return store.root
    folder = mkdtemp(prefix="tokenizer-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in names.intersection((*FOLDER_FILES, PIECES_FILE)):
        Path(folder, name).write_bytes(store.read(name, MAX_BYTES))
    return folder


def _find_tokenizer(request: ModelRequest, folder: str, names: set[str], name: str = TOKENIZER_FILE) -> str:
    """Return the path of the tokenizer, whose file in the folder has a name.

    Raises:
        WeightsError: there is none.
    """
    if request.tokenizer:
        return request.tokenizer
    if name not in names:
        raise WeightsError(f"{request.path} has no {name}: name one with --tokenizer")
    return str(Path(folder, name))


def _list_ends(config: Mapping[str, Any]) -> frozenset[int]:
    ends = config.get(END_KEY)
    return frozenset(ends if isinstance(ends, list) else () if ends is None else (ends,))


def _is_cpu() -> bool:
    return jax.default_backend() == "cpu"


def _compute_format(accelerator_format: Any = "bfloat16") -> Any:
    """Return the format to compute in: CPUs are faster in float32."""
    return "float32" if _is_cpu() else accelerator_format
