"""LoRA adapters in the format of PEFT, as start of a job."""

from typing import Any

import jax

from trainingjob_api.huggingface.peft import CONFIG_FILE, WEIGHTS_FILE, bind_adapters, list_config_problems
from trainingjob_api.huggingface.registry import write_config
from trainingjob_api.network.adapter import is_adapter
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.checkpoint import AdapterSource
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.huggingface.hub_download import ADAPTER, locate_files
from trainingjob_trainer.huggingface.import_weights import import_array, match_tensors
from trainingjob_trainer.huggingface.safetensors import WeightsError, read_header
from trainingjob_trainer.huggingface.weights_folder import WeightsFolder, read_json
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.trainable import tensor_name
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.opening import open_store

FIELD = "spec.checkpoint.initializeFrom.adapter"
MAX_NAMED = 6


def load_adapters(spec: TrainingJobSpec, params: Params, shapes: Params) -> Params:
    """Return parameters with the adapters of the folder or repository that the spec names. Without one: `params`.

    `shapes` have the shapes, formats and shardings of all parameters.

    Raises:
        TrainingError: the folder cannot be read, or holds adapters of another model, rank or scale.
    """
    source = spec.checkpoint.initialize_from
    if source is None or source.adapter is None or spec.lora is None:
        return params
    own, network, name = open_store(spec.checkpoint.uri), resolve_network(spec), source.adapter.name
    try:
        store = open_store(locate_files(ADAPTER, source.adapter.path, own))
        problems = list(list_config_problems(spec.lora, read_json(store, CONFIG_FILE)))
        weights = WeightsFolder(store, read_header(store, WEIGHTS_FILE))
    except (OSError, WeightsError) as error:
        reason = FailureReason.STORAGE if isinstance(error, OSError) else FailureReason.CONFIG
        message = f"{name} has no adapter that can be read: {error}. It needs {CONFIG_FILE} and {WEIGHTS_FILE}."
        raise _adapter_error(source.adapter, message, reason) from error
    found = write_config(spec.model)
    binding = bind_adapters(found[0], network).binding if found else None
    if binding is None:
        raise _adapter_error(source.adapter, "no architecture of PEFT computes `spec.model`.")
    match = match_tensors(weights, binding)
    problems += [*match.misfits, *(f"{tensor} is missing" for tensor in match.missing)]
    problems += [f"{tensor} has no place in `spec.lora.targets`" for tensor in match.unused]
    if problems:
        rest = f"; and {len(problems) - MAX_NAMED:,} more" if len(problems) > MAX_NAMED else ""
        raise _adapter_error(
            source.adapter,
            f"{name} holds adapters of another job: {'; '.join(problems[:MAX_NAMED])}{rest}. `spec.model` and "
            "`spec.lora` must be those of the adapters.",
        )
    names = {tensor.name for tensor in network.tensors if is_adapter(tensor)}

    def load(place: Any, leaf: jax.Array, abstract_array: jax.ShapeDtypeStruct) -> jax.Array:
        name = tensor_name(place)
        return import_array(weights, binding.by_tensor[name], abstract_array) if name in names else leaf

    loaded: Params = jax.tree_util.tree_map_with_path(load, params, shapes)
    return loaded


def _adapter_error(source: AdapterSource, message: str, reason: FailureReason = FailureReason.CONFIG) -> TrainingError:
    """Return an error at the field that names the adapters."""
    path = f"{FIELD}.{'path' if source.path else 'repository'}"
    return TrainingError(reason, message, path=path, value=source.name)
