"""Mutations of the trainer."""

from tests.mutation_tables.mutation import TRAINER, Mutation

PIPELINE = "tests/trainer/models/test_alternating_pipeline.py"

TRAINER_MUTATIONS = (
    Mutation(
        "load a program that another job wrote",
        f"{TRAINER}/runtime/compile_cache_files.py",
        "    if not hmac.compare_digest(code, _sign(name, content, secret)):\n",
        "    if False:\n",
        ("tests/trainer/runtime/test_compile_cache_files.py",),
    ),
    Mutation(
        "load a program under another's name",
        f"{TRAINER}/runtime/compile_cache_files.py",
        'CONTENT_CONTEXT + name.encode() + b"\\0"',
        "CONTENT_CONTEXT",
        ("tests/trainer/runtime/test_compile_cache_files.py",),
    ),
    Mutation(
        "leave the modules in folders out of the key",
        f"{TRAINER}/runtime/compile_cache_key.py",
        '        folders[:] = [name for name in folders if name != "__pycache__"]\n',
        "        folders[:] = []\n",
        ("tests/trainer/runtime/test_compile_cache_key.py",),
    ),
    Mutation(
        "leave the optimizer out of the key",
        f"{TRAINER}/runtime/compile_cache_key.py",
        '    described: dict[str, Any] = spec.model_dump(mode="json", by_alias=True)\n',
        '    described: dict[str, Any] = spec.model_dump(mode="json", by_alias=True, exclude={"optimizer"})\n',
        ("tests/trainer/runtime/test_compile_cache_key.py",),
    ),
    Mutation(
        "cut documents as a tokenizer file says",
        f"{TRAINER}/data/tokenizers.py",
        "    parsed.no_truncation()\n",
        "",
        ("tests/trainer/data/test_tokenizers.py",),
    ),
    Mutation(
        "fill documents up as a tokenizer file says",
        f"{TRAINER}/data/tokenizers.py",
        "    parsed.no_padding()\n",
        "",
        ("tests/trainer/data/test_tokenizers.py",),
    ),
    Mutation(
        "make an index of a file that changes meanwhile",
        f"{TRAINER}/data/preparation/parts.py",
        "            listed.check_unchanged()\n",
        "",
        ("tests/trainer/data/test_texts.py",),
    ),
    Mutation(
        "move the data position with the batch size",
        f"{TRAINER}/data/sampler.py",
        "(*before, (step + 1, global_batch_size))",
        "((1, global_batch_size),)",
        ("tests/trainer/data/test_sampler.py",),
    ),
    Mutation(
        "idle stages add what they compute",
        f"{TRAINER}/models/alternating_pipeline.py",
        "        layers, gradients = _mask(is_busy_S, pull_back(gradients))\n",
        "        layers, gradients = pull_back(gradients)\n",
        (f"{PIPELINE}::test_idle_stages_add_nothing_even_if_they_compute_no_numbers",),
    ),
    Mutation(
        "a stage runs the input of another microbatch again",
        f"{TRAINER}/models/alternating_pipeline.py",
        "[number + 2 * stage for stage",
        "[number + stage for stage",
        (f"{PIPELINE}::test_each_microbatch_runs_forward_and_backward_through_all_stages",),
    ),
    Mutation(
        "a tied table gets the gradients of the embedding alone",
        f"{TRAINER}/objectives/pipeline_gradients.py",
        "        return joined | shared\n",
        "        return joined | grads.embedding\n",
        (f"{PIPELINE}::test_other_models_have_the_gradients_of_one_device",),
    ),
    Mutation(
        "preferences are compared with the model itself",
        f"{TRAINER}/objectives/batch_sums.py",
        "self._split.merge(reference, frozen), batch)",
        "params, batch)",
        ("tests/trainer/test_preferences.py::test_loss_and_gradient_are_those_of_the_pairs_alone",),
    ),
    Mutation(
        "answers that both conversations share have a loss",
        f"{TRAINER}/data/chat/answer_encoder.py",
        "for span in one.answers if span not in shared",
        "for span in one.answers",
        ("tests/trainer/data/chat/test_pairs.py",),
    ),
    Mutation(
        "fine-tuning has a loss on prompts",
        f"{TRAINER}/data/chat/answer_weights.py",
        "        weights |= ((begins < last) & (ends > first)).astype(np.uint8)\n",
        "        weights |= (begins < last).astype(np.uint8)\n",
        ("tests/trainer/data/chat/test_answer_weights.py",),
    ),
    Mutation(
        "a chat template calls methods whose result has no bound",
        f"{TRAINER}/data/chat/template_sandbox.py",
        " or (isinstance(obj, str) and attr not in ALLOWED_TEXT_METHODS):\n",
        ":\n",
        ("tests/trainer/data/chat/test_template_sandbox.py",),
    ),
    Mutation(
        "a world trains on from a step whose loss has ended training",
        f"{TRAINER}/loop.py",
        "    last = checkpoints.newest if context.evaluator.ends_training(losses) else context.last_step\n",
        "    last = context.last_step\n",
        ("tests/trainer/test_stopping.py",),
    ),
    Mutation(
        "a world trains on from a step in memory alone whose loss may have ended training",
        f"{TRAINER}/monitoring/evaluation.py",
        "            return self._stop is not None and self._stop.evaluation in due\n",
        "            return False\n",
        ("tests/trainer/monitoring/test_evaluation.py",),
    ),
    Mutation(
        "a target that is one of several likeliest tokens counts as a hit",
        f"{TRAINER}/models/chunked_loss.py",
        "((target_logits == top) & (earlier == 0))",
        "(target_logits == top)",
        ("tests/trainer/objectives/test_scoring.py",),
    ),
)
