"""A folder that `transformers` and vLLM load: weights, configuration, tokenizer and options of generation."""

import json
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from trainingjob_api.huggingface.families.llama_like import MISTRAL
from trainingjob_api.huggingface.family import Family
from trainingjob_api.huggingface.peft import CONFIG_FILE as ADAPTER_CONFIG_FILE
from trainingjob_api.huggingface.peft import WEIGHTS_FILE as ADAPTER_FILE
from trainingjob_api.huggingface.peft import AdapterBinding, bind_adapters, write_adapter_config
from trainingjob_api.huggingface.registry import FAMILIES, write_config
from trainingjob_api.network.network import Network
from trainingjob_api.network.resolve import resolve, resolve_network
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.checkpoint import AdapterFormat
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.lora import Lora
from trainingjob_api.spec.tokenizer import TOKENIZERS
from trainingjob_trainer.huggingface.companion_files import copy_companions, read_kept_config
from trainingjob_trainer.huggingface.export_weights import (
    MAX_FILE_BYTES,
    ExportPlan,
    Gather,
    clear_weight_files,
    write_index,
    write_weight_files,
)
from trainingjob_trainer.huggingface.merge_adapters import merge_adapters
from trainingjob_trainer.huggingface.tokenizer_files import CONFIG_FILE as TOKENIZER_CONFIG_FILE
from trainingjob_trainer.huggingface.tokenizer_files import (
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    list_published_files,
    read_tokenizer_files,
)
from trainingjob_trainer.huggingface.weights_folder import CONFIG_FILE
from trainingjob_trainer.runtime.errors import PERMANENT_ERRNOS, TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
FIELD = "spec.checkpoint.export.huggingFace"
DTYPE_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
STAGE_SECONDS = 1800
"""Seconds that the first process waits for the last after a stage."""
LENGTH = "max_position_embeddings"
LAYER_KINDS = "layer_types"
REPLACED_KEYS = (
    "rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq", "dtype", "torch_dtype",
    "quantization_config", "auto_map",
)  # fmt: skip
"""Fields of a kept `config.json` that describe the initial weights or name code beside them, not the exported ones."""


class ExportTarget(NamedTuple):
    """Where to export to, and in which format."""

    store: Store
    dtype: str
    """A format of `precision.params`."""
    max_file_bytes: int = MAX_FILE_BYTES
    adapter: AdapterFormat = "merged"
    """What becomes of the adapters of LoRA."""


class PlannedExport(NamedTuple):
    """The files of a model, and where their numbers come from."""

    plan: ExportPlan
    gather: Gather
    architecture: str
    finish: Callable[[], None]
    """Writes the configuration, the tokenizer and the index: one process calls it, after all weights are written."""


class ExportedModel(NamedTuple):
    """What was written."""

    architecture: str
    num_files: int


def export_model(
    spec: TrainingJobSpec, gather: Gather, own: Store, target: ExportTarget, peers: ProcessGroup
) -> ExportedModel:
    """Write a model; all processes call this together. `own` is the job's store, with the files that it has kept.

    The index, or else the configuration, is written last: a folder without it is incomplete.

    Raises:
        TrainingError: no architecture computes the model, or the folder cannot be written.
        JaxRuntimeError: another process is gone.
    """
    planned, store, is_first = plan_export(spec, gather, own, target), target.store, peers.process == 0
    plan, architecture = planned.plan, planned.architecture
    _run_stage("clear", store, peers, lambda: clear_weight_files(store) if is_first else None)
    _run_stage("write", store, peers, lambda: write_weight_files(plan, planned.gather, store, peers))
    _run_stage("finish", store, peers, lambda: planned.finish() if is_first else None)
    LOG.info("exported weights uri=%s architecture=%s files=%d", store.root, architecture, len(plan.files))
    return ExportedModel(architecture, len(plan.files))


def plan_export(spec: TrainingJobSpec, gather: Gather, own: Store, target: ExportTarget) -> PlannedExport:
    """Return the files to write. `own` is the job's store, with the files that it has kept.

    Raises:
        TrainingError: no architecture computes the model.
    """
    kept, network, store = read_kept_config(own), resolve_network(spec), target.store
    family, config = _make_config(spec, kept, target.dtype)
    if spec.lora and target.adapter == "peft":
        adapters = _bind_adapters(family, network)
        plan = ExportPlan(adapters.binding, DTYPE_NAMES[target.dtype], file_name=ADAPTER_FILE)
        config = _describe_adapters(spec, spec.lora, adapters)
    else:
        gather = merge_adapters(gather, network, spec.lora)
        plan = ExportPlan(family.bind(resolve(spec.model)), DTYPE_NAMES[target.dtype], target.max_file_bytes)

    def finish() -> None:
        if plan.file_name == ADAPTER_FILE:
            store.write(ADAPTER_CONFIG_FILE, [json.dumps(config, indent=2).encode()])
            return
        copy_companions(own, store)
        _write_tokenizer(spec, store)
        store.write(CONFIG_FILE, [json.dumps(config, indent=2).encode()])
        write_index(plan, store)

    return PlannedExport(plan, gather, family.architecture, finish)


def _bind_adapters(family: Family, network: Network) -> AdapterBinding:
    """Return the adapters of a network in the files of a family.

    Raises:
        TrainingError: the files of the family have no place for one.
    """
    adapters = bind_adapters(family, network)
    if adapters.unmapped:
        message = (
            f"{family.architecture} has no matrix for the adapters of {', '.join(adapters.unmapped)}, which share one "
            "there. Export with `adapter: merged`."
        )
        raise TrainingError(FailureReason.CONFIG, message, path=f"{FIELD}.adapter", value="peft")
    return adapters


def _describe_adapters(spec: TrainingJobSpec, lora: Lora, adapters: AdapterBinding) -> dict[str, Any]:
    """Return the `adapter_config.json` of a job's adapters."""
    source = spec.checkpoint.initialize_from
    published = source.hugging_face if source else None
    base = (published.repository or published.path) if published else None
    return write_adapter_config(lora, adapters.modules, base, published.revision if published else None)


def _make_config(spec: TrainingJobSpec, kept: dict[str, Any], dtype: str) -> tuple[Family, dict[str, Any]]:
    """Return the family of a model, and its `config.json` with the other fields of a kept one.

    Raises:
        TrainingError: no supported architecture computes the model.
    """
    model_type = str(kept.get("model_type"))
    own = FAMILIES[model_type].to_config(spec.model) if model_type in FAMILIES else None
    found = (FAMILIES[model_type], own) if own else write_config(spec.model)
    if found is None:
        message = "no supported architecture of transformers computes this model. Remove the export."
        raise TrainingError(FailureReason.CONFIG, message, path="spec.model")
    family, config = found
    if own is None:
        kept = {key: value for key, value in kept.items() if key.endswith("token_id")}
    kept = {key: value for key, value in kept.items() if key not in REPLACED_KEYS}
    if family.model_type == MISTRAL.model_type or len(kept.get(LAYER_KINDS) or ()) != spec.model.num_layers:
        kept.pop(LAYER_KINDS, None)  # of a part of the initial layers, or of others: the family writes its list
    return family, {
        "bos_token_id": None,
        "eos_token_id": None,
        **kept,
        **_describe_length(spec, kept),
        "torch_dtype": dtype,
        **config,
    }


def _describe_length(spec: TrainingJobSpec, kept: dict[str, Any]) -> dict[str, Any]:
    """Return the field of the longest sequence: a table of positions has another name for it, and its own size."""
    if spec.model.positions == "learned":
        return {}
    return {LENGTH: max(int(kept.get(LENGTH) or 0), spec.training.sequence_length)}


def _run_stage(name: str, store: Store, peers: ProcessGroup, operation: Callable[[], OSError | None]) -> None:
    """Run a stage on this process, and wait for the others.

    Raises:
        TrainingError: the stage failed on any process.
    """
    try:
        error = operation()
    except OSError as caught:
        error = caught
    problem = f"{error.errno or 0} {error.strerror}" if error else ""
    failed = next(filter(None, peers.exchange(f"export/{name}", problem, STAGE_SECONDS)), "")
    if failed:
        number, _, text = failed.partition(" ")
        raise TrainingError(
            FailureReason.STORAGE,
            f"the export of the weights failed: {text}. The checkpoint of the last step is complete: the next attempt "
            "exports it, or `trainingjob export`.",
            path=f"{FIELD}.uri",
            value=store.root,
            fatal=int(number) in PERMANENT_ERRNOS,
        ) from error


def _write_tokenizer(spec: TrainingJobSpec, store: Store) -> None:
    """Write the tokenizer of the job, unless the initial weights had one, and the chat template that the spec names."""
    tokenizer = spec.tokenizer
    try:
        files = list_published_files(tokenizer)
    except FileNotFoundError:  # an export of a checkpoint may run on another machine
        LOG.warning("exported without a tokenizer: %s does not exist here", tokenizer.path)
        return
    except TrainingError as error:
        LOG.warning("exported without a tokenizer: %s", error)
        return
    if TOKENIZER_FILE in {entry.name for entry in store.list_folder()}:
        files = {name: files[name] for name in (TEMPLATE_FILE,) if tokenizer.chat_template}
    elif tokenizer.type == TOKENIZERS:
        files[TOKENIZER_CONFIG_FILE] = json.dumps(_describe_tokenizer(spec), indent=2).encode()
    for name, content in files.items():
        store.write(name, [content])


def _describe_tokenizer(spec: TrainingJobSpec) -> dict[str, Any]:
    """Return the options of a tokenizer that is a file alone."""
    options: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    options["model_max_length"] = spec.training.sequence_length
    return options | read_tokenizer_files(spec.tokenizer).special_tokens
