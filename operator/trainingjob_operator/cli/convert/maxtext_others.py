"""Keys of MaxText's config outside of training, parallelism, data and checkpoints: most have no counterpart."""

from trainingjob_operator.cli.convert.source_rows import EVALUATION_BATCH, Combined, Copy, Omit, Table

DERIVED = "a model is its numbers, and presets are the sizes"
OFF_LAYER = "it belongs to a kind of layer that is off"
OPERATOR = "the operator provides it"
KERNEL = "the trainer chooses kernels and their tiles, and the plan names them"
SWITCH = "an implementation switch of MaxText"
SCALES = "only matmuls in training are quantized, with scales of the largest values of each operand"
SERVING = "it is for serving"
MULTIMODAL = "only text is trained"
OBJECTIVE = "the objective is the next token, or fine-tuning"
OTHERS: Table = {
    "base_config": Omit("convert the file that it names too"),
    "global_parameter_scale": Omit(DERIVED, off=(1,)),
    "eval_per_device_batch_size": Omit(EVALUATION_BATCH, off=(0, 0.0)),
    **dict.fromkeys(("dropout_rate", "enable_dropout"), Combined()),
    "normalize_embedding_logits": Omit("a tied output projection has no own factor: set `logits.scale`", off=(False,)),
    "z_loss_multiplier": Copy("objective.zLoss", off=(0, 0.0)),
    "mtp_num_layers": Copy("model.multiTokenPrediction.depth", off=(0,)),
    "mtp_loss_scaling_factor": Combined(),
    "mtp_*": Omit("the loss of further tokens is no held-out loss", off=(0,)),
    "attention_output_dim": Omit("the output of attention has the width of the residual stream", off=(-1,)),
    **dict.fromkeys(
        ("indexer_*", "moba_*", "gdn_*", "engram_*", "mhc_*", "global_*", "local_rope_proportion", "compress*", "o_*",
         "causal_block_size", "use_double_wide_mlp", "vocab_size_per_layer_input"),
        Omit(OFF_LAYER),
    ),
    **dict.fromkeys(("qk_norm_with_scale", "v_norm_with_scale"), Omit("norms have a learned scale", off=(True,))),
    "use_qk_clip": Omit("no option limits the largest score", off=(False,)),
    "qk_clip_threshold": Omit("no option limits the largest score"),
    "ragged_buffer_factor": Omit("`experts.capacityFactor` limits the tokens of an expert", off=(-1, -1.0)),
    "rope_min_timescale": Omit("the fastest frequency is 1", off=(1,)),
    "dense_init_scale": Copy("model.init.matrices.scale", off=(1, 1.0)),
    "parameter_memory_host_offload": Omit("parameters are in device memory", off=(False,)),
    "jax_cache_dir": Omit("`runtime.compileCache` names a folder on a volume"),
    "compile_xla_flags": Omit("`runtime.env` has the variable `XLA_FLAGS`", off=("",)),
    **dict.fromkeys(
        ("hardware", "num_slices", "compile_topology*", "compiled_trainstep_file", "internal_compile*",
         "subslice_shape", "skip_jax_distributed_system", "jax_distributed_initialization_timeout"),
        Omit(OPERATOR),
    ),
    **dict.fromkeys(
        ("attention", "sa_*", "wi_tile_*", "wo_tile_*", "megablox", "sparse_matmul", "use_tokamax_*", "use_jax_splash",
         "use_custom_sort_vjp", "use_gather_mosaic_kernel", "merge_gating_gmm", "prefuse_moe_weights", "use_gmm_v2",
         "force_q_layout", "use_max_logit_estimate", "cost_estimate_flops_*", "use_iota_embed", "fused_qkv",
         "fused_mlp", "float32_*", "logits_dot_in_fp32", "cast_logits_to_fp32",
         "activations_in_float32", "use_ring_of_experts", "use_ragged_*", "mla_*", "use_random_routing",
         "num_moe_*", "moe_chunk_barrier", "moe_dispatch_*", "ragged_gather*", "te_comm_gemm_overlap", "check_vma",
         "use_splash_scheduler", "dq_reduction_steps", "use_sliced_mla_proj", "*_two_stage_all_gather"),
        Omit(KERNEL),
    ),
    **dict.fromkeys(
        ("scan_*", "param_scan_axis", "set_remat_policy_on_*", "enable_nnx", "pure_nnx*", "shardy",
         "remove_size_one_mesh_axis_from_type", "use_batch_split_schedule", "batch_split_factor", "num_layers_per_*",
         "pipeline_*", "max_inflight_computations", "use_manual_quantization", "rope_pairwise"),
        Omit(SWITCH),
    ),
    **dict.fromkeys(
        ("quant*", "use_qwix_quantization", "*_quantization_*", "kv_quant_*", "replicate_quant_scale",
         "weight_sparsity_*", "checkpoint_is_quantized", "save_quantized_params_path"),
        Omit(SCALES, off=("", False)),
    ),
    **dict.fromkeys(
        ("max_prefill_predict_length", "prompt", "*prefill*", "autoregressive_*", "decode_*", "inference_*", "ar_*",
         "generate_slice", "vllm_*", "stack_*", "model_call_mode", "return_log_prob", "multi_sampling",
         "compute_axis_order", "reshape_q", "enable_model_warmup", "enable_llm_inference_pool"),
        Omit(SERVING),
    ),
    **dict.fromkeys(
        ("use_multimodal", "use_audio", "use_mrope", "mrope_section", "vision_*", "*_for_vit", "*_for_audio",
         "image_*", "train_image_column", "eval_image_column", "position_id_per_seconds", "freeze_vision_*"),
        Omit(MULTIMODAL, off=(False,)),
    ),
    **dict.fromkeys(
        ("block_diffusion_*", "sft_*", "use_chat_template", "chat_template*",
         "training_objective", "use_grpo", "grpo_*", "rl", "trainable_parameters_mask"),
        Omit(OBJECTIVE, off=(False, "causal_lm", [])),
    ),
    **dict.fromkeys(("enable_diloco", "diloco_*"), Omit("write `parallelism.replicas` and `slices.max`", off=(False,))),
    "hf_access_token": Omit("a secret must be in a Secret"),
}  # fmt: skip
