"""Initial parameters from published weights: checked against the job's model, and read into its shards."""

import json
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
from pydantic import ValidationError

from trainingjob_api.huggingface.config_fields import ConfigError
from trainingjob_api.huggingface.family import compare_functions
from trainingjob_api.huggingface.registry import find_family, read_config
from trainingjob_api.huggingface.rule import Binding
from trainingjob_api.network.resolve import resolve
from trainingjob_api.protocol import MAX_MESSAGE, FailureReason
from trainingjob_api.spec.checkpoint import HuggingFaceSource, InitializeFrom
from trainingjob_api.spec.model import Model
from trainingjob_trainer.huggingface.companion_files import keep_companions
from trainingjob_trainer.huggingface.hub_download import WEIGHTS, locate_files, name_source
from trainingjob_trainer.huggingface.import_weights import (
    TensorMatch,
    add_prefix,
    import_array,
    match_tensors,
)
from trainingjob_trainer.huggingface.safetensors import WeightsError
from trainingjob_trainer.huggingface.weights_folder import WeightsFolder, open_weights
from trainingjob_trainer.models.base_params import BaseParams
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.trainable import tensor_name
from trainingjob_trainer.runtime.errors import TrainingError, shorten
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
SOURCE = "spec.checkpoint.initializeFrom"
MAX_NAMED = 4
"""Maximum number of tensors and fields that a message names."""


class PublishedParams(NamedTuple):
    """Parameters, and a text that names their source."""

    params: Params
    source: str


def load_published_params(
    source: InitializeFrom, model: Model, base: BaseParams, random: Params, own: Store, *, is_leader: bool
) -> PublishedParams:
    """Return published parameters.

    `random` holds the initial values of those that the files lack. It is consumed, because both may not fit in memory.
    The leading process keeps the small files beside the weights in the job's `own` store, for exports.

    Raises:
        TrainingError: the files cannot be read, or hold another model.
    """
    assert source.hugging_face is not None  # noqa: S101  # the caller has chosen by it
    path, name = locate_files(WEIGHTS, source.hugging_face.path, own), name_source(WEIGHTS, source.hugging_face, own)
    with _training_errors(source.hugging_face, path):
        weights = open_weights(open_store(path))
        published_model = read_model(weights)
        family = find_family(weights.config)
        weights, binding = add_prefix(weights, family.optional_prefix), family.bind(resolve(model))
        match = match_tensors(weights, binding, family.derived)
        partial = source.allow_partial if base.may_be_partial else None
        _check_match(path, match, binding.unmapped, _describe_differences(model, published_model), partial=partial)

        in_part = {name for name in match.list_partial(binding) if not base.is_quantized(name)}

        def load(place: Any, leaf: jax.ShapeDtypeStruct, initial: jax.Array) -> jax.Array:
            name = tensor_name(place)
            if name in match.incomplete and name not in in_part:
                return initial
            if name in in_part:
                pieces = [piece for piece in binding.by_tensor[name] if piece.file_name in weights.tensors]
                return import_array(weights, pieces, leaf, initial)
            initial.delete()
            return base.store(name, import_array(weights, binding.by_tensor[name], leaf))

        loaded = jax.tree_util.tree_map_with_path(load, base.abstract_params, base.select(random))
        if is_leader:
            keep_companions(weights.store, own)
    return PublishedParams(
        base.complete(loaded, random),
        _describe_source(name, match, binding, in_part, _describe_differences(model, published_model)),
    )


@contextmanager
def _training_errors(source: HuggingFaceSource, path: str) -> Iterator[None]:
    """Raise errors about the files of a folder as `TrainingError`."""
    field = f"{SOURCE}.huggingFace.{'path' if source.path else 'repository'}"
    try:
        yield
    except OSError as error:
        message = f"reading {path} failed: {error.strerror}."
        raise TrainingError(FailureReason.STORAGE, message, path=field, value=path) from error
    except (WeightsError, ConfigError) as error:
        message = f"{path} cannot be used: {error}"
        raise TrainingError(FailureReason.CONFIG, message, path=field, value=path) from error


def read_model(weights: WeightsFolder) -> Model:
    """Return the model of a `config.json`.

    Raises:
        ConfigError: no model section expresses it.
    """
    try:
        return Model.model_validate(read_config(weights.config))
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise ConfigError(".".join(map(str, first["loc"])), f"has an unsupported value: {first['msg']}") from error


def _check_match(
    path: str,
    match: TensorMatch,
    unmapped: tuple[str, ...],
    differences: tuple[str, ...],
    *,
    partial: bool | None,
) -> None:
    """Check that the files have the tensors of the job's model. `partial` is None if the spec has no such option.

    Raises:
        TrainingError: they lack some, or have others.
    """
    wrong = [*match.misfits, *(f"they have nothing for {name}" for name in unmapped)]
    missing = [] if partial else [f"{name} is missing" for name in match.missing]
    if not wrong and not missing:
        return
    advice = f"Set the section model to that of the files, which `trainingjob import {path}` prints"
    is_partial_option = partial is not None and not wrong and not differences
    if is_partial_option:
        advice = f"Set {SOURCE}.allowPartial to true to start with random values for them"
    raise TrainingError(
        FailureReason.CONFIG,
        f"{path} holds the weights of another model: {_join([*wrong, *missing])}. "
        + (f"Differences: {_join(differences)}. " if differences else "")
        + f"{advice}.",
        path=f"{SOURCE}.allowPartial" if is_partial_option else "spec.model",
        value="false" if is_partial_option else "",
    )


def _describe_differences(model: Model, published_model: Model) -> tuple[str, ...]:
    """Return the fields of the job's model that compute another way than the published model."""
    return tuple(
        f"spec.model.{path} is {json.dumps(own_value)}, not {json.dumps(published_value)}"
        for path, (own_value, published_value) in compare_functions(model, published_model).items()
    )


def _describe_source(
    name: str, match: TensorMatch, binding: Binding, in_part: Collection[str], differences: tuple[str, ...]
) -> str:
    """Return a text that names the source of the parameters, and log it.

    `in_part` are the incomplete tensors whose other parts are those of the files.
    """
    random = set(match.incomplete).difference(in_part)
    used = [
        file for file in match.matched if any(piece.tensor.name not in random for piece in binding.by_file_name[file])
    ]
    description = f"{len(used):,} tensors of {name}"
    if match.incomplete:
        missing = [f"{tensor} in part" if tensor in in_part else tensor for tensor in match.incomplete]
        description += f"; missing there, so they start random: {_join(missing)}"
    if match.unused:
        description += f"; not used: {_join(match.unused)}"
    if differences:
        description += f"; this job computes another way: {_join(differences)}"
    LOG.info("initialized parameters source=%s", description)
    return shorten(description, MAX_MESSAGE)


def _join(items: list[str] | tuple[str, ...]) -> str:
    """Return the first of some items, and the number of the others."""
    rest = f", and {len(items) - MAX_NAMED:,} more" if len(items) > MAX_NAMED else ""
    return "; ".join(items[:MAX_NAMED]) + rest
