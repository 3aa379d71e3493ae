"""Table of Levanter's config keys: one row per key, with its field in a job."""

from collections.abc import Mapping
from typing import Any

from trainingjob_api.base import MAX_SHORT_NAME
from trainingjob_api.huggingface.config_fields import ConfigError
from trainingjob_api.huggingface.registry import read_config
from trainingjob_api.notation import slug
from trainingjob_operator.cli.convert.bucket_paths import checkpoints_in, text_in, tokenizer_in
from trainingjob_operator.cli.convert.draft_job import (
    CHECKPOINTS_HINT,
    TEXT_FILES,
    TEXT_HINT,
    TOKENIZER,
    TOKENIZER_HINT,
    DraftJob,
)
from trainingjob_operator.cli.convert.optimizer_objects import move_hyperparameters, set_decay_of_muon
from trainingjob_operator.cli.convert.source_rows import (
    ATTENTION_DROPOUT,
    EVALUATION_BATCH,
    Combined,
    Copy,
    FillIn,
    NoCounterpartError,
    Omit,
    Table,
    Values,
    apply_rows,
    lookup,
    name_repository,
    read_epochs,
    set_wandb,
    to_share,
)
from trainingjob_operator.cli.errors import CommandError

LLAMA_KEYS = {
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "layer_norm_epsilon": "rms_norm_eps",
    "tie_word_embeddings": "tie_word_embeddings",
    "initializer_range": "initializer_range",
    "sliding_window": "sliding_window",
    "num_experts": "num_local_experts",
    "num_experts_per_tok": "num_experts_per_tok",
}
"""Names in Levanter's model section, and in the `config.json` of the same model."""
GPT2_KEYS = {
    "hidden_dim": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "seq_len": "n_positions",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
    "activation_function": "activation_function",
}
LLAMA_SIZE = {
    "hidden_dim": 4096, "intermediate_dim": 11008, "num_layers": 32, "num_heads": 32, "num_kv_heads": 32,
    "layer_norm_epsilon": 1e-5, "seq_len": 2048,
}  # fmt: skip
MISTRAL_SIZE = LLAMA_SIZE | {"intermediate_dim": 14336, "num_kv_heads": 8, "seq_len": 8192}
FAMILIES: Mapping[str, tuple[str, Mapping[str, str], Mapping[str, Any]]] = {
    "gpt2": ("gpt2", GPT2_KEYS, {"hidden_dim": 768, "num_layers": 12, "num_heads": 12, "seq_len": 1024}),
    "llama": ("llama", LLAMA_KEYS, LLAMA_SIZE),
    "mistral": ("mistral", LLAMA_KEYS, MISTRAL_SIZE),
    "mixtral": ("mixtral", LLAMA_KEYS, MISTRAL_SIZE),
    "qwen": ("qwen2", LLAMA_KEYS, LLAMA_SIZE),
    "qwen2": ("qwen2", LLAMA_KEYS, LLAMA_SIZE),
    "qwen3": ("qwen3", LLAMA_KEYS, LLAMA_SIZE),
    "gemma": ("gemma", LLAMA_KEYS, LLAMA_SIZE),
}
"""By Levanter's type of a model: the type in `config.json`, the names, and the sizes that may be omitted."""
ROPES: Mapping[str, dict[str, Any]] = {
    "llama3": {
        "theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 2048},
    "linear": {"factor": 1.0},
}  # fmt: skip
"""By kind of rotary positions, the options that may be omitted."""
MIXTURE = "data.configs."
AVERAGE = "trainer.model_averaging"
MAX_SOURCES = 16
VOCABULARIES = {
    "gpt2": 50257,
    "EleutherAI/gpt-neox-20b": 50277,
    "meta-llama/Llama-2": 32000,
    "NousResearch/Llama-2": 32000,
    "meta-llama/Meta-Llama-3": 128256,
    "meta-llama/Llama-3": 128256,
    "stanford-crfm/marin-tokenizer": 128256,
    "mistralai/Mistral-7B-v0.1": 32000,
    "mistralai/Mixtral-8x7B": 32000,
    "Qwen/": 151936,
}
"""Vocabulary sizes by the prefix of a tokenizer's name. Levanter's config has only the name."""

KERNEL = "the trainer chooses kernels and their tiles, and the plan names them"
OPERATOR = "the operator provides it"
SHARDING = "`parallelism` has the sizes of mesh axes: choose them, or keep `strategy: auto`"
FILES = "`data.train` names files in the pods by path and format"
DECAY_SHAPE = "it is none of the shapes of `schedule.type`"
OPTIMIZERS = {"adam": "adamw", "lion": "lion", "muon": "muon"}
KIMI_RMS = 0.2
"""Root mean square of updates with `use_kimi_scaling`."""
SCHEDULES = {"cosine": "cosine", "linear": "linear", "constant": "constant", "inv_sqrt": "inverseSqrt"}
FLOATS = {"f32": "float32", "float32": "float32", "full": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16"}
DEFAULTS: Values = {
    "trainer.num_train_steps": 400_000, "trainer.train_batch_size": 32, "optimizer.learning_rate": 6e-4,
    "optimizer.warmup": 0.01, "trainer.checkpointer.save_interval": "15m",
}  # fmt: skip
"""Values that a Levanter config omits, where they differ from the defaults of a job."""
REMAT = {"True": "full", "False": "none"}
NO_DECAY = ["norm", "bias", "embedding"]
"""Kinds of tensors to which Levanter applies no weight decay."""
TEXT = FillIn("data.train", TEXT_FILES, TEXT_HINT, text_in)


def _to_stages(keep: Any) -> list[dict[str, int]]:
    """Return the stages of retention: rows of `every` and `until`."""
    stages = [{name: row[name] for name in ("every", "until") if row.get(name)} for row in keep]
    if not all("every" in stage for stage in stages):
        raise NoCounterpartError("`checkpoint.keep.stages` needs `every`")
    return stages


def _to_cycles(cycles: Any) -> int:
    """Return the number of cycles. A list has the steps at which they begin."""
    if not isinstance(cycles, int):
        raise NoCounterpartError("`schedule.cycles` divides the steps equally")
    return cycles


def _to_first_batch(sizes: Any) -> int:
    """Return the batch size of the first step. A list has the steps at which the size changes."""
    return int(sizes[0]["value"] if isinstance(sizes, list) else sizes)


TABLE: Table = {
    "model": Omit("the section is in another file: convert that file, or name a preset"),
    "model.type": Combined(),
    **{f"model.{key}": Combined() for key in (*LLAMA_KEYS, *GPT2_KEYS, "mlp_scale")},
    "model.rope.*": Combined(),
    "model.gradient_checkpointing": Copy("memory.remat", lookup(REMAT, "`memory.remat` is `none` or `full`")),
    "model.scale_attn_by_inverse_layer_idx": Omit("no option scales scores by the number of the layer", off=(False,)),
    "model.use_bias": Omit("`attention.bias` and `mlp.bias` switch biases on", off=(False,)),
    "model.use_layer_norm_weight": Omit("norms have a learned scale", off=(True,)),
    "model.resid_pdrop": Copy("model.dropout.residual", off=(0, 0.0)),
    "model.embed_pdrop": Copy("model.dropout.embedding", off=(0, 0.0)),
    "model.attn_pdrop": Omit(ATTENTION_DROPOUT, off=(0, 0.0)),
    "model.upcast_attn": Omit("scores are float32", off=(True,)),
    **dict.fromkeys(
        ("model.use_flash_attention", "model.attn_backend", "model.flash_attention_block_size", "model.scan_layers",
         "model.gradient_checkpointing_*", "model.reference_checkpoint", "model.tokenizer"),
        Omit(KERNEL),
    ),
    "trainer.seed": Copy("training.seed"),
    "trainer.train_batch_size": Copy("training.globalBatchSize", _to_first_batch),
    "trainer.num_train_steps": Copy("training.steps"),
    "trainer.per_device_parallelism": Copy("training.maxPerDeviceBatch", off=(-1,)),
    "trainer.per_device_eval_parallelism": Omit(EVALUATION_BATCH, off=(-1,)),
    "trainer.per_device_*": Omit("batches are divided by the plan"),
    "trainer.mp": Combined(),
    "trainer.model_averaging*": Combined(),
    "trainer.steps_per_eval": Omit("`evaluation` has held-out text, and the steps between two evaluations"),
    "trainer.max_eval_batches": Omit("`evaluation` has held-out text, and the number of batches"),
    "trainer.checkpointer.save_interval": Copy("checkpoint.save.every"),
    "trainer.checkpointer.keep": Copy("checkpoint.keep.stages", _to_stages),
    "trainer.checkpointer.base_path": FillIn("checkpoint.uri", "/runs/run", CHECKPOINTS_HINT, checkpoints_in),
    "trainer.load_checkpoint*": Omit("a job resumes from its checkpoints, if there are any"),
    "trainer.initialize_from": Omit("`checkpoint.initializeFrom` names a checkpoint of another job"),
    "trainer.tracker*": Combined(),
    "trainer.wandb*": Combined(),
    **dict.fromkeys(
        ("trainer.model_axis_size", "trainer.tensor_parallel_axes", "trainer.fsdp_axis", "trainer.batch_axis",
         "trainer.axis_*", "trainer.parameter_axis*", "trainer.replica_*", "trainer.dcn_*", "trainer.mesh*"),
        Omit(SHARDING),
    ),
    **dict.fromkeys(
        ("trainer.ray*", "trainer.distributed*", "trainer.require_accelerator", "trainer.shutdown_at_exit",
         "trainer.jax_config*", "trainer.id", "trainer.run_base_dir", "trainer.log_dir", "trainer.profiler*",
         "trainer.load_debug*", "trainer.watch*", "trainer.use_explicit_mesh_axes"),
        Omit(OPERATOR),
    ),
    **{f"{section}.learning_rate": Copy("optimizer.learningRate", float) for section in ("optimizer", "trainer")},
    **{f"{section}.weight_decay": Copy("optimizer.weightDecay.rate") for section in ("optimizer", "trainer")},
    "optimizer.type": Copy("optimizer.type", lookup(OPTIMIZERS, "it is none of the optimizers")),
    "optimizer.beta1": Copy("optimizer.adamw.beta1"),
    "optimizer.beta2": Copy("optimizer.adamw.beta2"),
    "optimizer.epsilon": Copy("optimizer.adamw.epsilon"),
    "optimizer.lr": Omit("Levanter does not read it: `optimizer.learning_rate` is the rate of matrices"),
    "optimizer.adam_lr": Omit("the job has the rate of matrices: `optimizer.learningRates` has factors of it"),
    "optimizer.momentum": Copy("optimizer.muon.momentum"),
    "optimizer.nesterov": Omit("the momentum of Muon is Nesterov momentum", off=(True,)),
    "optimizer.backend_steps": Copy("optimizer.muon.newtonSchulzSteps"),
    "optimizer.use_kimi_scaling": Combined(),
    "optimizer.coefficient_type": Omit("the polynomial of Newton-Schulz iterations is fixed", off=("quintic",)),
    "optimizer.muon_epsilon": Omit("the norm of a matrix has a constant of 1e-8", off=(1e-8,)),
    "optimizer.adam_weight_decay": Combined(),
    "optimizer.update_rms_clipping": Copy("optimizer.clipUpdateRms", off=(None,)),
    "optimizer.clip_update_norm": Omit("`optimizer.clipUpdateRms` has a constant limit", off=(None,)),
    "optimizer.max_grad_norm": Copy("optimizer.clipNorm", off=(None,)),
    **{f"{section}.warmup": Copy("schedule.warmup", to_share) for section in ("optimizer", "trainer")},
    **{f"{section}.warmup_ratio": Copy("schedule.warmup", to_share) for section in ("optimizer", "trainer")},
    **{f"{section}.min_lr_ratio": Copy("schedule.finalFraction") for section in ("optimizer", "trainer")},
    "optimizer.lr_schedule": Copy("schedule.type", lookup(SCHEDULES, DECAY_SHAPE)),
    "optimizer.decay": Combined(),
    "optimizer.cycles": Copy("schedule.cycles.count", _to_cycles, off=(None, 0, 1)),
    "optimizer.rewarmup": Combined(),
    **dict.fromkeys(
        ("optimizer.cooldown", "optimizer.cycle_length", "optimizer.haps"), Omit(DECAY_SHAPE, off=(None, 0, 0.0))
    ),
    "optimizer.default_weight_decay_mask": Omit("`optimizer.weightDecay.exclude` names kinds of tensors"),
    "optimizer.weight_decay_modules": Omit("`optimizer.weightDecay.exclude` names kinds of tensors"),
    "data": TEXT,
    "data.id": TEXT,
    "data.train_urls": TEXT,
    "data.configs*": TEXT,
    "data.tokenizer": FillIn("tokenizer", TOKENIZER, TOKENIZER_HINT, tokenizer_in),
    "data.validation_urls": Omit("`evaluation` names held-out text in the pods by path and format"),
    "data.train_weights*": Omit("write the weight of each source as `data.train[].weight`"),
    "data.cache_dir": Omit("the trainer keeps tokens on the storage of the job"),
    "data.shuffle": Copy("data.shuffle", lookup({"False": False}, "an epoch is shuffled as a whole"), off=(True,)),
    "data.*": Omit(FILES),
    "epoch": Combined(),
    "z_loss_weight": Copy("objective.zLoss", off=(None, 0, 0.0)),
    "initialize_from_hf": Copy("checkpoint.initializeFrom.huggingFace.repository", name_repository, off=(False, None)),
    "use_hf_model_config": Omit("convert that model's config.json", off=(False,)),
    "hf_save_*": Omit("checkpoints are those of the job"),
    "hf_upload": Omit("checkpoints are those of the job"),
    "eval_harness*": Omit("a job measures losses alone"),
}  # fmt: skip


def read_levanter(values: Values, draft: DraftJob) -> None:
    """Put a Levanter config, with dots between the parts of its keys, into a job.

    Raises:
        CommandError: no model section expresses its model.
    """
    draft.set("model", _read_model(values, draft))
    draft.drop_no_tokens()
    _set_sources(values, draft)
    draft.use_tokenizer(values.get("data.tokenizer"))
    apply_rows(TABLE, {**DEFAULTS, **values}, draft)
    draft.set("optimizer.weightDecay.exclude", NO_DECAY)
    move_hyperparameters(draft)
    if draft.get("optimizer.type") == "muon":
        rate = values.get("optimizer.weight_decay", 0.0)
        other_rate = values.get("optimizer.adam_weight_decay")
        set_decay_of_muon(draft, rate, "optimizer.adam_weight_decay", rate if other_rate is None else other_rate)
        if values.get("optimizer.use_kimi_scaling"):
            draft.set("optimizer.muon.rmsScale", KIMI_RMS)
    read_epochs(values, "epoch", "trainer.num_train_steps", draft, default=0)
    _read_decay({**DEFAULTS, **values}, draft)
    _read_batches(values, draft)
    _read_average(values, draft)
    for tracker in _list_trackers(values):
        if tracker.get("type", "wandb") == "wandb":
            names = ("entity", "name", "tags")
            set_wandb(draft, tracker.get("project") or "levanter", **{name: tracker.get(name) for name in names})
    for part in str(values.get("trainer.mp", "")).split(","):
        kind, _, name = part.partition("=")
        if name in FLOATS and kind.strip() in ("p", "c"):
            draft.set(f"precision.{'params' if kind.strip() == 'p' else 'compute'}", FLOATS[name])


def _read_decay(values: Values, draft: DraftJob) -> None:
    """Set a decay at the end of the steps, and the warm-up of later cycles, which Levanter has for each shape."""
    decay, shape = values.get("optimizer.decay"), values.get("optimizer.lr_schedule", "cosine")
    if decay is not None and shape in ("linear", "cosine"):
        draft.set("schedule.type", "wsd")
        draft.set("schedule.wsd", {"decay": to_share(decay), "shape": shape})
    if draft.get("schedule.cycles.count") and values.get("optimizer.rewarmup"):
        draft.set("schedule.cycles.warmup", to_share(values["optimizer.rewarmup"]))


def _read_batches(values: Values, draft: DraftJob) -> None:
    """Set the batch sizes of later steps, which Levanter counts from 0."""
    key = "trainer.train_batch_size"
    phases = values.get(key)
    if not isinstance(phases, list):
        return
    sizes = [phase["value"] for phase in phases]
    if sizes == sorted(set(sizes)):
        later_phases = [{"fromStep": phase["start"] + 1, "globalBatchSize": phase["value"]} for phase in phases[1:]]
        draft.set("training.batchSchedule", later_phases)
    else:
        draft.omit(key, phases, "`training.batchSchedule` has batch sizes that grow")


def _read_average(values: Values, draft: DraftJob) -> None:
    """Set the moving average of the parameters. The other kind of Levanter has no counterpart."""
    kind = values.get(f"{AVERAGE}.type")
    if kind == "ema":
        draft.set("optimizer.average.decay", values.get(f"{AVERAGE}.beta", 0.999))
    elif kind is not None:
        draft.omit(f"{AVERAGE}.type", kind, "`optimizer.average` has a constant decay")


def _set_sources(values: Values, draft: DraftJob) -> None:
    """Set the sources of a mixture by their names. Users must fill in the paths."""
    names = list(dict.fromkeys(key.split(".")[2] for key in values if key.startswith(MIXTURE)))
    if names:
        sources = [{"name": slug(name)[:MAX_SHORT_NAME], "path": f"/data/{slug(name)}"} for name in names]
        draft.set_placeholder("data.train", sources[:MAX_SOURCES], f"the paths of {', '.join(names)} in the pods.")


def _list_trackers(values: Values) -> list[Mapping[str, Any]]:
    """Return the trackers: a list, or one section, which older files have under another name."""
    trackers = values.get("trainer.tracker")
    if isinstance(trackers, list):
        return trackers
    sections = ("trainer.tracker.", "trainer.wandb.")
    candidates = [{key.removeprefix(name): values[key] for key in values if key.startswith(name)} for name in sections]
    return [tracker for tracker in candidates if tracker]


def _read_model(values: Values, draft: DraftJob) -> dict[str, Any]:
    """Return the model section, converted from the equivalent `config.json`."""
    kind = values.get("model.type", "gpt2")
    if kind not in FAMILIES:
        raise CommandError(f"model.type: {kind} cannot be converted. It must be one of: {', '.join(FAMILIES)}.")
    model_type, names, sizes = FAMILIES[kind]
    model = {**sizes, **{key.removeprefix("model."): value for key, value in values.items()}}
    config = {
        "model_type": model_type,
        **{config_key: model[levanter_key] for levanter_key, config_key in names.items() if levanter_key in model},
    }
    config |= _read_rope({key.removeprefix("rope."): value for key, value in model.items() if key.startswith("rope.")})
    config["vocab_size"] = _find_vocabulary(values.get("data.tokenizer", "gpt2"), draft)
    draft.set("training.sequenceLength", model["seq_len"])
    try:
        return read_config(config)
    except ConfigError as error:
        raise CommandError(f"{error} The model cannot be converted.") from error


def _read_rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary positions as `config.json` has them: a base, and a scaling."""
    kind = rope.get("type", "default")
    options = ROPES.get(kind, {}) | dict(rope)
    theta = {"rope_theta": float(options["theta"])} if "theta" in options else {}
    scaling = {name: value for name, value in options.items() if name not in ("type", "theta", "mscale")}
    return theta if kind == "default" else theta | {"rope_scaling": {"rope_type": kind, **scaling}}


def _find_vocabulary(tokenizer: str, draft: DraftJob) -> int:
    """Return the size of a tokenizer's vocabulary, with a placeholder if it is unknown."""
    size = next((size for name, size in VOCABULARIES.items() if str(tokenizer).startswith(name)), None)
    if size is None:
        draft.fill_in["model.vocabSize"] = f"the number of token ids of {tokenizer}."
    return size or VOCABULARIES["gpt2"]
