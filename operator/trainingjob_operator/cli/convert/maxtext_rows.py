"""Table of MaxText's config keys: one row per key, with its field in a job."""

from typing import Any

from trainingjob_operator.cli.convert.bucket_paths import checkpoints_in, text_in, tokenizer_in
from trainingjob_operator.cli.convert.draft_job import (
    CHECKPOINTS_HINT,
    TEXT_FILES,
    TEXT_HINT,
    TOKENIZER,
    TOKENIZER_HINT,
    DraftJob,
)
from trainingjob_operator.cli.convert.maxtext_distillation import ROWS as DISTILLATION
from trainingjob_operator.cli.convert.maxtext_distillation import read_distillation, take_student
from trainingjob_operator.cli.convert.maxtext_fine_tuning import ROWS as FINE_TUNING
from trainingjob_operator.cli.convert.maxtext_fine_tuning import read_fine_tuning
from trainingjob_operator.cli.convert.maxtext_model import COMBINED, KEYS, MISSING, WITH_PRESET, read_model
from trainingjob_operator.cli.convert.maxtext_others import OTHERS
from trainingjob_operator.cli.convert.optimizer_objects import move_hyperparameters, set_decay_of_muon
from trainingjob_operator.cli.convert.source_rows import (
    Combined,
    Copy,
    FillIn,
    NoCounterpartError,
    Omit,
    Table,
    Values,
    apply_rows,
    lookup,
    read_epochs,
    set_wandb,
    to_share,
)

FLOATS = {"float32": "float32", "bfloat16": "bfloat16"}
EXCLUDED = {"norm": "norm", "bias": "bias", "embedding": "embed"}
"""Kinds of tensors without weight decay, and the parts of their names by which patterns select them."""
DEFAULTS: Values = {
    "steps": 150_001, "max_target_length": 2048, "learning_rate": 3e-5, "warmup_steps_fraction": 0.1, "adamw_mask": [],
    "checkpoint_period": 10_000, "remat_policy": "full", "log_period": 100,
}  # fmt: skip
"""Values of MaxText's base.yml that differ from the defaults of a job."""
_PROJECTIONS = ["query", "key", "value"]
REMAT: dict[str, dict[str, Any]] = {
    "none": {"remat": "none"},
    "full": {"remat": "full"},
    "minimal": {"remat": "saveMatmuls"},
    "minimal_with_context": {"remat": "minimal"},
    "save_qkv_proj": {"remat": "custom", "save": _PROJECTIONS},
    "save_out_proj": {"remat": "custom", "save": ["attentionProjection"]},
    "save_dot_except_mlp": {"remat": "custom", "save": [*_PROJECTIONS, "attentionProjection"]},
    "save_dot_except_mlpwi": {"remat": "custom", "save": [*_PROJECTIONS, "attentionProjection", "mlpOutput"]},
    "save_dot_with_context_except_mlp": {
        "remat": "custom", "save": [*_PROJECTIONS, "attentionOutput", "attentionProjection"]
    },
    "qkv_proj_offloaded": {"remat": "custom", "offload": _PROJECTIONS},
    "minimal_offloaded": {
        "remat": "custom", "offload": [*_PROJECTIONS, "attentionProjection", "mlpGate", "mlpUp", "mlpOutput"]
    },
}  # fmt: skip
"""Policies of MaxText, and the fields of `memory` with the same effect."""
OPTIMIZER_OFFLOAD = "optimizer_memory_host_offload"
CUSTOM_REMAT = {
    "decoder_layer_input": "layerInput", "query_proj": "query", "key_proj": "key", "value_proj": "value",
    "context": "attentionOutput", "out_proj": "attentionProjection", "mlpwi_0": "mlpGate", "mlpwi_1": "mlpUp",
    "mlpwo": "mlpOutput",
}  # fmt: skip
"""Activations of MaxText's policy `custom`, and their names in a job."""
EXCHANGES = {"all_gather": "gather", "ring": "ring"}
MATMULS = {name: name for name in ("default", "high", "highest")} | {"bfloat16": "default", "float32": "highest"}
PACKING = {
    "first_fit": {"type": "bestFit"}, "best_fit": {"type": "bestFit"},
    "concat_then_split": {"type": "concat", "isolateDocuments": True},
}  # fmt: skip
"""How MaxText packs documents, which it always isolates."""
SCHEDULES = {"cosine": "cosine", "wsd": "wsd"}
OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adamw", "muon": "muon", "sgd": "sgd"}

MTP_LOSS_WEIGHT = 0.1
"""Default of MaxText."""

BATCH = "the batch size is the same in every step"
SHARDING = "the order of the mesh axes is fixed, and `parallelism.rules` has the sharding of parameters"
STORAGE = "the format and the tiers of checkpoints are fixed; `checkpoint.snapshots` and `checkpoint.backup` add tiers"
INITIALIZE = "`checkpoint.initializeFrom` names a checkpoint of another job"
CLOUD = "a product of one cloud"
INPUT = "data is read by position, and the depth of the prefetch is measured"
DEBUG = "an aid for debugging"
FORMAT = "the formats of a model in training are those of `precision`"
QUANTIZED_TYPES = {
    "int8": "int8",
    **dict.fromkeys(
        ("fp8", "fp8_full", "fp8_gpu", "aqt_fp8", "aqt_fp8_full", "te_fp8_currentscaling", "te_fp8_delayedscaling"),
        "fp8",
    ),
}
QUANTIZED = "`precision.quantization` rounds both operands of a matmul to int8 or fp8"


def _to_steps(value: Any) -> int:
    if int(value) < 1:
        raise NoCounterpartError("the number of steps must be at least 1")
    return int(value)


def _to_excluded(mask: Any) -> list[str]:
    """Return the kinds of tensors that the patterns of names exclude from weight decay."""
    kinds = {kind: any(substring in pattern for pattern in mask) for kind, substring in EXCLUDED.items()}
    if any(not any(substring in pattern for substring in EXCLUDED.values()) for pattern in mask if "ln" not in pattern):
        raise NoCounterpartError("`optimizer.weightDecay.exclude` names kinds of tensors")
    return [kind for kind, is_excluded in kinds.items() if is_excluded]


TRAINING: Table = {
    "run_name": Combined(),
    "steps": Copy("training.steps", _to_steps),
    "max_target_length": Copy("training.sequenceLength"),
    "per_device_batch_size": Combined(),
    "gradient_accumulation_steps": Combined(),
    "init_weights_seed": Copy("training.seed"),
    "data_shuffle_seed": Omit("`training.seed` is the seed of the parameters and of the data order", off=(0,)),
    "learning_rate": Copy("optimizer.learningRate", float),
    "opt_type": Copy("optimizer.type", lookup(OPTIMIZERS, "it is none of the optimizers of `optimizer.type`")),
    "adam_b1": Copy("optimizer.adamw.beta1"),
    "adam_b2": Copy("optimizer.adamw.beta2"),
    "adam_eps": Copy("optimizer.adamw.epsilon"),
    "adam_eps_root": Copy("optimizer.adamw.epsilonRoot", off=(0, 0.0)),
    "adam_weight_decay": Copy("optimizer.weightDecay.rate"),
    "adamw_mask": Copy("optimizer.weightDecay.exclude", _to_excluded),
    "mu_dtype": Copy("precision.moments", lookup(FLOATS, FORMAT), off=("", "float32")),
    "gradient_clipping_threshold": Copy("optimizer.clipNorm"),
    "lr_schedule_type": Copy("schedule.type", lookup(SCHEDULES, "it is none of the shapes of `schedule.type`")),
    "warmup_steps_fraction": Copy("schedule.warmup", to_share),
    "learning_rate_final_fraction": Copy("schedule.finalFraction"),
    "cosine_learning_rate_final_fraction": Copy("schedule.finalFraction"),
    "learning_rate_schedule_steps": Copy("schedule.steps", off=(-1,)),
    "wsd_decay_steps_fraction": Combined(),
    "wsd_decay_style": Combined(),
    "dtype": Copy("precision.compute", lookup(FLOATS, FORMAT)),
    "weight_dtype": Copy("precision.params", lookup(FLOATS, FORMAT)),
    "grad_dtype": Copy("precision.gradients", lookup(FLOATS, FORMAT), off=("float32",)),
    "quantization": Copy("precision.quantization.type", lookup(QUANTIZED_TYPES, QUANTIZED), off=("",)),
    "matmul_precision": Copy("precision.matmul", lookup(MATMULS, FORMAT), off=("default", "bfloat16")),
    "num_vocab_tiling": Copy("memory.lossChunks", off=(1,)),
    **dict.fromkeys(("remat_policy", *CUSTOM_REMAT, OPTIMIZER_OFFLOAD), Combined()),
    **dict.fromkeys(
        ("indexer_cutoff_threshold", "*mlpwi*", "*mlpwo", "*_proj", "mla_q", "mla_kv", "attention_out", "engram"),
        Omit("`memory.save` has no activation of this name", off=("remat",)),
    ),
    "muon_beta": Copy("optimizer.muon.momentum"),
    "muon_consistent_rms": Copy("optimizer.muon.rmsScale", off=(None, "None", "")),
    "muon_weight_decay": Combined(),
    "enable_rampup_batch_size": Omit(BATCH, off=(False,)),
    **dict.fromkeys(("per_device_batch_size_*", "global_rampup_samples"), Omit(BATCH)),
    "shard_optimizer_over_data": Copy("parallelism.shardOptimizerOverData", bool, off=(False,)),
    "num_pipeline_microbatches": Copy("parallelism.pipeline.microbatches", off=(-1,)),
    "num_pipeline_repeats": Combined(),
    "context_parallel_strategy": Copy(
        "parallelism.context.exchange", lookup(EXCHANGES, "it is none of the ways of `parallelism.context.exchange`"),
        off=("all_gather",),
    ),
    "context_parallel_load_balance": Omit("a ring balances the causal halves, and a gather needs none", off=(True,)),
    "skip_step_on_spikes": Omit("`protection` has the limits of losses and gradients", off=(False,)),
    "skip_step_*": Omit("`protection` has the limits of losses and gradients"),
}  # fmt: skip
AXES = {
    "data": "data", "pipeline": "stage", "fsdp": "fsdp", "expert": "expert", "context": "context", "tensor": "tensor",
}  # fmt: skip
PARALLELISM: Table = {
    **{
        f"{network}_{maxtext_axis}_parallelism": Copy(f"parallelism.{network}.{axis}")
        for network in ("ici", "dcn")
        for maxtext_axis, axis in AXES.items()
    },
    "ici_*_parallelism": Omit("no mesh axis has this meaning", off=(1,)),
    "dcn_*_parallelism": Omit("no mesh axis has this meaning", off=(1,)),
    **dict.fromkeys(
        ("mesh_axes", "*logical_axis_rules*", "data_sharding", "input_data_sharding_logical_axes", "*context_sharding",
         "custom_mesh*", "shard_mode", "sharding_tolerance", "sharding_strategy", "allow_split_physical_axes",
         "optimize_mesh_for_tpu_v6e", "use_2d_fsdp_sharding", "shard_exp_on_fsdp"),
        Omit(SHARDING),
    ),
}  # fmt: skip
DATA: Table = {
    "dataset_type": Omit("`data.train` names files by path or data set, and their format"),
    **{
        key: FillIn("data.train", TEXT_FILES, TEXT_HINT, text_in)
        for key in ("dataset_path", "hf_path", "hf_train_files", "grain_train_files", "dataset_name")
    },
    "hf_*": Omit("`data.train` names files in the pods by path and format", off=("",)),
    "eval_dataset_name": Omit("`evaluation` names held-out text in the pods by path and format"),
    "*_split": Omit("`data.train` and `evaluation` name files by path"),
    "grain_*": Omit(INPUT, off=("",)),
    "tokenizer_path": FillIn("tokenizer", TOKENIZER, TOKENIZER_HINT, tokenizer_in),
    "tokenizer_type": Omit("`tokenizer.type` names the kind of file: `tokenizers`, `sentencePiece` or `huggingFace`"),
    "add_bos": Omit("`tokenizer.beginOfDocument` names the token that begins a document", off=(False,)),
    "add_eos": Omit("`tokenizer.endOfDocument` names the token that ends a document"),
    "packing": Copy("data.packing", lookup({"True": {"type": "bestFit"}}, "documents are packed into sequences")),
    "grain_packing_type": Copy("data.packing", lookup(PACKING, INPUT)),
    "*_data_columns": Omit("`evaluation[].column` or `messages` names the field of a record"),
    "num_epoch": Combined(),
    "enable_data_shuffling": Copy("data.shuffle", off=(True,)),
    **dict.fromkeys(
        ("expansion_factor_real_data", "generate_padding_batch_*", "reuse_example_batch", "max_corpus_chars",
         "colocated_python_data_input", "olmo_*", "max_segments_per_seq", "tokenize_*", "use_truncation"),
        Omit(INPUT),
    ),
}  # fmt: skip
CHECKPOINTS: Table = {
    "base_output_directory": FillIn("checkpoint.uri", "/runs/run", CHECKPOINTS_HINT, checkpoints_in),
    "checkpoint_period": Copy("checkpoint.save.everySteps"),
    "max_num_checkpoints_to_keep": Copy("checkpoint.keep.last", off=(None, "None")),
    "enable_checkpointing": Omit("checkpoints are always on", off=(True,)),
    "enable_single_replica_ckpt_restoring": Omit("`checkpoint.restore.broadcastFrom` does it", off=(False,)),
    **dict.fromkeys(
        ("load_parameters_path", "load_full_state_path", "lora_input_adapters_path", "hf_lora_adapter_path",
         "checkpoint_conversion_fn", "source_checkpoint_layout"),
        Omit(INITIALIZE, off=("", "none", "orbax")),
    ),
    **dict.fromkeys(
        ("checkpoint_storage_*", "checkpoint_todelete_*", "enable_orbax_v1", "async_checkpointing",
         "save_checkpoint_on_*", "enable_continuous_checkpointing", "enable_autocheckpoint", "force_unroll",
         "enable_emergency_checkpoint", "enable_multi_tier_checkpointing", "multi_tier_*", "mtc_*",
         "local_checkpoint_*", "use_replicator_service", "colocated_python_checkpointing"),
        Omit(STORAGE),
    ),
}  # fmt: skip
REPORTS: Table = {
    "log_period": Copy("metrics.everySteps"),
    "enable_tensorboard": Copy("metrics.tensorboard"),
    "eval_interval": Omit("`evaluation` has held-out text, and the steps between two evaluations", off=(-1,)),
    "eval_*": Omit("`evaluation` has held-out text, and the steps between two evaluations", off=(-1, 0, 0.0)),
    "target_eval_loss": Omit("`training.stopAtLoss` names the evaluation whose loss ends training", off=(0, 0.0)),
    "enable_wandb": Combined(),
    "wandb_*": Combined(),
    "abort_on_*": Omit("`protection` decides about losses that are not finite", off=(True,)),
    **dict.fromkeys(
        ("metrics_file", "gcs_metrics", "save_config_to_gcs", "log_config"),
        Omit("metrics are below `checkpoint.uri`, and the status has the plan"),
    ),
    **dict.fromkeys(
        ("*goodput*", "*vertex_tensorboard*", "managed_mldiagnostics*", "*_gcp_*", "heartbeat_reporting_*",
         "*step_time_deviation", "step_deviation_*", "write_estimator_result"),
        Omit(CLOUD),
    ),
    **dict.fromkeys(
        ("dcn_bandwidth_*", "profiler*", "profile_*", "skip_first_n_steps_for_profiler", "*_profiler_*", "dump_*",
         "tpu_num_*", "enable_tpu_profiling_options", "xprof_*", "*stack_trace*", "max_checkify",
         "jax_debug_log_modules", "constant_bound_config", "record_internal_nn_metrics", "enable_jax_profiler",
         "jax_profiler_port"),
        Omit(DEBUG),
    ),
}  # fmt: skip
TABLE: Table = {
    **dict.fromkeys((*KEYS, *COMBINED, *MISSING), Combined()),
    **FINE_TUNING,
    **DISTILLATION,
    **TRAINING,
    **PARALLELISM,
    **DATA,
    **CHECKPOINTS,
    **REPORTS,
    **OTHERS,
}


def read_maxtext(values: Values, draft: DraftJob) -> None:
    """Put a MaxText config into a job.

    Raises:
        CommandError: no model section expresses its model.
    """
    common, values = values, take_student(values)
    draft.set("model", read_model(values))
    if values.get("capacity_factor", -1) <= 0:
        draft.drop_no_tokens()
    if values.get("tokenizer_type") == "huggingface":
        draft.use_tokenizer(values.get("tokenizer_path"))
    read_fine_tuning(values, draft)
    read_distillation(common, draft)
    apply_rows(TABLE, {**DEFAULTS, **values}, draft)
    read_epochs(values, "num_epoch", "steps", draft, default=1)
    _read_optimizer(values, draft)
    if draft.get("model.preset"):
        for key in (key for key in values if key in COMBINED and key not in WITH_PRESET):
            draft.omit(key, values[key], "the preset has it: change `model` beside `preset`")
    _read_remat({**DEFAULTS, **values}, draft)
    if int(values.get("num_pipeline_repeats", 1)) > 1:
        draft.set("parallelism.pipeline.schedule", "circular")
        draft.set("parallelism.pipeline.repeats", int(values["num_pipeline_repeats"]))
    if values.get("mtp_num_layers"):
        draft.set("model.multiTokenPrediction.lossWeight", values.get("mtp_loss_scaling_factor", MTP_LOSS_WEIGHT))
    if values.get("enable_dropout", True) and values.get("dropout_rate"):
        draft.set("model.dropout", dict.fromkeys(("residual", "embedding"), values["dropout_rate"]))
    if values.get("lr_schedule_type") == "wsd":
        decay = {"decay": to_share(values.get("wsd_decay_steps_fraction", 0.1))}
        draft.set("schedule.wsd", {**decay, "shape": values.get("wsd_decay_style", "linear")})
    if values.get("enable_wandb"):
        set_wandb(draft, values.get("wandb_project_name", "maxtext"), name=values.get("wandb_run_name"))
    accumulation_steps = values.get("gradient_accumulation_steps", 1)
    draft.sequences_per_device = float(values.get("per_device_batch_size", 12.0)) * max(accumulation_steps, 1)


def _read_optimizer(values: Values, draft: DraftJob) -> None:
    """Set the hyperparameters and the weight decay of the optimizer's type."""
    move_hyperparameters(draft)
    if draft.get("optimizer.type") == "muon":
        rate, other_rate = values.get("muon_weight_decay", 0), values.get("adam_weight_decay", 0.1)
        set_decay_of_muon(draft, rate, "adam_weight_decay", other_rate)
    if draft.get("optimizer.type") == "sgd":
        draft.set("optimizer.weightDecay.rate", 0)  # that of MaxText has none


def _read_remat(values: Values, draft: DraftJob) -> None:
    """Set rematerialization and offload, and omit a policy that `memory` does not have."""
    policy = values["remat_policy"]
    locations = {activation: values.get(maxtext_key) for maxtext_key, activation in CUSTOM_REMAT.items()}
    custom = {
        field: [activation for activation, location in locations.items() if location == expected]
        for field, expected in (("save", "device"), ("offload", "offload"))
    }
    # A layer always saves its input, if not on the host.
    custom["save"] = [activation for activation in custom["save"] if activation != "layerInput"]
    memory = REMAT.get(policy)
    if policy == "custom":
        memory = {"remat": "custom", **custom} if any(custom.values()) else REMAT["full"]
    if memory is None:
        draft.omit("remat_policy", policy, "it is none of the policies of `memory.remat`")
    for field, value in (memory or {}).items():
        if value:
            draft.set(f"memory.{field}", value)
    if values.get(OPTIMIZER_OFFLOAD) and draft.get("optimizer.type") != "sgd":  # that of MaxText has no state
        draft.set("memory.offload", [*(draft.get("memory.offload") or ()), "optimizer"])
