"""Speed of the trainer's step against MaxText's, for the 10.6 M model of `make bench-trainer` on one CPU device.

Both train in one process, from the same weights, on the same batches, in blocks of a few steps that alternate.
It runs in an environment with the packages of `e2e/maxtext.lock`, because MaxText is no dependency of the project.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ["DECOUPLE_GCLOUD"] = "TRUE"  # before its import: run without Google Cloud

import jax
import maxtext
import numpy as np
from flax import nnx
from maxtext.trainers.pre_train import train
from maxtext.utils import sharding, train_utils
from rich.console import Console

from e2e.benchmarks.figures import Figure, publish
from e2e.benchmarks.trainer import (
    BATCH,
    LENGTH,
    MAX_LOSS_DIFFERENCE,
    SINGLE,
    SPEC,
    Step,
    compile_trainer_step,
    read_batches,
    time_pairs,
)
from trainingjob_api.spec.job import TrainingJobSpec

GOAL = 1.2
PAIRS = 8
type Params = Mapping[str, Any]

WEIGHTS: dict[str, Callable[[Params], Any]] = {
    "['token_embedder']['embedding']": lambda params: params["embedding"],
    "['logits_dense']['kernel']": lambda params: params["head"],
    "['decoder_norm']['scale']": lambda params: params["norm"]["scale"],
    "['mlp']['wi_0']['kernel']": lambda params: np.moveaxis(params["layers"]["mlp"]["gate"], 0, 1),
    "['mlp']['wi_1']['kernel']": lambda params: np.moveaxis(params["layers"]["mlp"]["up"], 0, 1),
    "['mlp']['wo']['kernel']": lambda params: np.moveaxis(params["layers"]["mlp"]["down"], 0, 1),
    "['pre_self_attention_layer_norm']['scale']": lambda params: params["layers"]["attention_norm"]["scale"].T,
    "['post_self_attention_layer_norm']['scale']": lambda params: params["layers"]["mlp_norm"]["scale"].T,
    # MaxText divides the scores by the square root of the head width within the query's weights.
    "['query']['kernel']": lambda params: np.moveaxis(params["layers"]["attention"]["query"], 0, 1) / 8,
    "['key']['kernel']": lambda params: np.moveaxis(params["layers"]["attention"]["key"], 0, 1),
    "['value']['kernel']": lambda params: np.moveaxis(params["layers"]["attention"]["value"], 0, 1),
    "['self_attention']['out']['kernel']": lambda params: np.moveaxis(params["layers"]["attention"]["out"], 0, 1),
}
"""Each of our tensors where MaxText has it: the axis of layers is its second."""


def list_options(spec: TrainingJobSpec, output: str) -> list[str]:
    """Return the command line of MaxText for a job."""
    model = spec.model
    options = {
        "hardware": "cpu",
        "skip_jax_distributed_system": True,
        "dataset_type": "synthetic",
        "base_emb_dim": model.embed_dim,
        "base_num_query_heads": model.num_heads,
        "base_num_kv_heads": model.kv_heads,
        "head_dim": model.heads.head_dim,
        "base_mlp_dim": model.mlp_dim,
        "base_num_decoder_layers": model.num_layers,
        "vocab_size": model.vocab_size,
        "normalization_layer_epsilon": model.norm.epsilon,
        "rope_max_timescale": int(model.rope.theta),
        "max_target_length": LENGTH,
        "per_device_batch_size": BATCH,
        "gradient_clipping_threshold": spec.optimizer.clip_norm,
        "dtype": "float32",
        "weight_dtype": "float32",
        "remat_policy": "none",
        "scan_layers": True,
        "opt_type": "adamw",
        "enable_checkpointing": False,
        "steps": 1000,
        "run_name": "bench",
        "base_output_directory": output,
    }
    base = Path(maxtext.__file__).with_name("configs") / "base.yml"
    return ["train", str(base), *(f"{name}={value}" for name, value in options.items())]


def compile_maxtext(spec: TrainingJobSpec, params: Params, tokens: list[np.ndarray], output: str) -> Step:
    """Return MaxText's compiled step, which begins with our weights. `tokens` have one more than a sequence."""
    config, recorder = train.initialize(list_options(spec, output))
    _, _, shardings, _, mesh, *_, state = train_utils.setup_train_loop(config, recorder)
    graph, state = nnx.split(state)
    params_shardings, shardings = sharding.maybe_update_params_sharding_with_opt(config, shardings)
    step, _ = train_utils.jit_train_and_eval_step(
        config, graph, mesh, state, shardings, train.train_step, train.eval_step, None, params_shardings
    )
    placed = 0

    def place(path: Any, leaf: Any) -> Any:
        nonlocal placed
        name = jax.tree_util.keystr(path).removesuffix(".value")
        found = [make(params) for ending, make in WEIGHTS.items() if name.endswith(ending)]
        if not found or not name.startswith("['model']"):
            return leaf
        placed += 1
        assert found[0].shape == leaf.shape, f"{name}: {found[0].shape} is not {leaf.shape}"
        return jax.device_put(found[0], leaf.sharding)

    state = jax.tree_util.tree_map_with_path(place, state)
    assert placed == len(WEIGHTS), f"{placed} of {len(WEIGHTS)} tensors of MaxText were found"
    segments, positions = np.ones((BATCH, LENGTH), np.int32), np.tile(np.arange(LENGTH, dtype=np.int32), (BATCH, 1))
    batches = [
        jax.device_put(
            {
                "inputs": step_tokens[:, :-1].astype(np.int32),
                "inputs_position": positions,
                "inputs_segmentation": segments,
                "targets": step_tokens[:, 1:].astype(np.int32),
                "targets_position": positions,
                "targets_segmentation": segments,
            }
        )
        for step_tokens in tokens
    ]

    def train_step(number: int) -> jax.Array:
        nonlocal state
        state, metrics = step(state, batches[number])
        loss: jax.Array = metrics["scalar"]["learning/loss"]
        return loss

    return train_step


def main() -> None:
    """Measure, print a table and write build/bench/maxtext.json."""
    console = Console()
    spec = TrainingJobSpec.model_validate(SPEC)
    batches, tokens = read_batches(spec, SINGLE)
    compiled = compile_trainer_step(spec, SINGLE, batches)
    with tempfile.TemporaryDirectory() as output:
        maxtext_step = compile_maxtext(spec, compiled.params, tokens, output)
        first = float(compiled.step(0)), float(maxtext_step(0))
        assert abs(first[0] - first[1]) < MAX_LOSS_DIFFERENCE, f"the losses of the first step are {first}"
        console.print(f"loss of the first step: {first[0]:.6f}, of MaxText {first[1]:.6f}")
        ratios, seconds = time_pairs(compiled.step, maxtext_step, PAIRS, "MaxText's step", console)
    ratio = float(np.median(ratios))
    publish(
        "maxtext",
        [
            Figure("step: speed", ratio, "of MaxText", GOAL),
            Figure("step: slowest pair", min(ratios), "of MaxText", GOAL),
            Figure("step: fastest pair", max(ratios), "of MaxText", GOAL),
            Figure("step: tokens/s", BATCH * LENGTH / seconds, "tokens/s", BATCH * LENGTH / seconds / ratio),
        ],
        console,
    )


if __name__ == "__main__":
    main()
