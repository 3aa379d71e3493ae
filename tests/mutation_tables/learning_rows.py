"""Mutations of what is learned: averages, limits, Adafactor, preferences and scores."""

from tests.mutation_tables.mutation import TRAINER, Mutation

AVERAGE, CLIPPING = "tests/trainer/optim/test_average.py", "tests/trainer/optim/test_clipping.py"
ADAFACTOR, SCORING = "tests/trainer/optim/test_adafactor.py", "tests/trainer/objectives/test_scoring.py"
PREFERENCES, ROUTING = "tests/trainer/test_preferences.py", "tests/trainer/models/test_routing_of_padding.py"

LEARNING_MUTATIONS = (
    Mutation(
        "padding balances the biases of experts",
        f"{TRAINER}/models/routed_mlp.py",
        "track_load(bias_E, counted_BNTE)",
        "track_load(bias_E, chosen_BNTE)",
        (ROUTING,),
    ),
    Mutation(
        "padding is part of the load-balancing loss",
        f"{TRAINER}/models/sharded_model.py",
        "        return self.run(params, *tokens, tapped, weights_MRL=batch.loss_weights)\n",
        "        return self.run(params, *tokens, tapped)\n",
        (ROUTING,),
    ),
    Mutation(
        "`trainingjob evaluate` reads batches of the first size",
        f"{TRAINER}/weights_exchange/evaluate_text.py",
        "    return spec.training.largest_batch // ",
        "    return spec.training.global_batch_size // ",
        ("tests/trainer/sampling/test_evaluate_text.py",),
    ),
    Mutation(
        "an average moves at a skipped update",
        f"{TRAINER}/optim/weight_average.py",
        "jnp.where(is_applied, limit_decay(config.decay, num_updates), 1.0)",
        "limit_decay(config.decay, num_updates)",
        (AVERAGE,),
    ),
    Mutation(
        "an average has its full decay from the first update",
        f"{TRAINER}/optim/weight_average.py",
        "    return jnp.minimum(decay, (1.0 + count) / (10.0 + count))\n",
        "    return jnp.minimum(decay, 1.0 + 0 * count)\n",
        (AVERAGE,),
    ),
    Mutation(
        "a limit of values has one side",
        f"{TRAINER}/optim/clipping.py",
        "jnp.clip(grad, -limit, limit)",
        "jnp.minimum(grad, limit)",
        (CLIPPING,),
    ),
    Mutation(
        "small updates are scaled up to the limit",
        f"{TRAINER}/optim/clipping.py",
        "update / jnp.maximum(1.0, rms / limit)",
        "update / (rms / limit)",
        (CLIPPING,),
    ),
    Mutation(
        "the layers of a stack share a root mean square",
        f"{TRAINER}/optim/clipping.py",
        "tuple(range(stack_dims[tensor_name(path)], param.ndim))",
        "tuple(range(param.ndim))",
        (CLIPPING,),
    ),
    Mutation(
        "Adafactor forgets its first gradients",
        f"{TRAINER}/optim/adafactor.py",
        "(state.num_updates + 1.0) ** -adafactor.decay_rate",
        "(state.num_updates + 2.0) ** -adafactor.decay_rate",
        (ADAFACTOR,),
    ),
    Mutation(
        "Adafactor does not normalize its rows",
        f"{TRAINER}/optim/adafactor.py",
        "jax.lax.rsqrt(rows / jnp.mean(rows, inputs, keepdims=True))",
        "jax.lax.rsqrt(rows)",
        (ADAFACTOR,),
    ),
    Mutation(
        "parameters of 0 never move",
        f"{TRAINER}/optim/adafactor.py",
        "update * jnp.maximum(rms, MIN_PARAM_RMS)",
        "update * rms",
        (ADAFACTOR,),
    ),
    Mutation(
        "the rejected answer is preferred",
        f"{TRAINER}/objectives/dpo.py",
        "    margins_MP = chosen_MP - rejected_MP\n",
        "    margins_MP = rejected_MP - chosen_MP\n",
        (PREFERENCES,),
    ),
    Mutation(
        "label smoothing has no effect",
        f"{TRAINER}/objectives/dpo.py",
        "    smoothing = options.label_smoothing\n",
        "    smoothing = 0.0\n",
        (PREFERENCES,),
    ),
    Mutation(
        "pairs of padding count",
        f"{TRAINER}/objectives/dpo.py",
        "(jnp.sum(batch.loss_weights, axis=-1) > 0).astype(jnp.float32)[:, ::2]",
        "jnp.ones_like(jnp.sum(batch.loss_weights, axis=-1))[:, ::2]",
        (PREFERENCES,),
    ),
    Mutation(
        "bits per byte are nats",
        f"{TRAINER}/objectives/scoring.py",
        "loss / math.log(2) / num_bytes",
        "loss / num_bytes",
        (SCORING,),
    ),
    Mutation(
        "the bytes of prompts count",
        f"{TRAINER}/objectives/scoring.py",
        "batch.loss_weights * batch.target_bytes",
        "batch.target_bytes",
        (SCORING,),
    ),
    Mutation(
        "the score of several batches is that of the last",
        f"{TRAINER}/objectives/scoring.py",
        "read if totals is None else jax.tree.map(operator.add, totals, read)",
        "read",
        (SCORING, "tests/trainer/monitoring/test_evaluation.py"),
    ),
    Mutation(
        "HLO is written by every process",
        f"{TRAINER}/runtime/hlo_dump.py",
        " or start.process != 0:\n",
        ":\n",
        ("tests/trainer/runtime/test_hlo_dump.py",),
    ),
    Mutation(
        "a batch without a loss is a loss that is not finite",
        f"{TRAINER}/step.py",
        "jnp.where(finite | (terms.weight == 0), 0, state.non_finite + 1)",
        "jnp.where(finite, 0, state.non_finite + 1)",
        ("tests/trainer/test_step.py::test_a_batch_without_a_loss_changes_nothing_and_is_no_failure",),
    ),
    Mutation(
        "an export keeps the kinds of more layers than it has",
        f"{TRAINER}/huggingface/model_export.py",
        "len(kept.get(LAYER_KINDS) or ()) != spec.model.num_layers",
        "not kept.get(LAYER_KINDS)",
        (
            "tests/trainer/huggingface/test_model_export.py::test_fields_that_describe_other_weights_or_files_are_left_out",
        ),
    ),
)
