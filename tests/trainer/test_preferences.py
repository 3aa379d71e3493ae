"""Preference optimization: loss, gradient and metrics are those of each pair alone, in NumPy."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.chat import chat_job, say, write_records
from tests.support.trainer.numeric_gradients import check_gradients
from tests.support.trainer.reference import row_losses
from tests.support.trainer.texts import index_of
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import ONE, Run, check_restored, flat, numpy_tree, spec_with
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.world import JobIdentity, Layout, RunConfig
from trainingjob_operator.core.planner.flops import count_step_flops
from trainingjob_operator.core.planner.workload import describe_workload
from trainingjob_trainer.compile_report.compile_account import compile_step

RATE = 1.0
LENGTH = 128
BETA, SMOOTHING = 0.5, 0.1
CHANGES: dict[str, Any] = {
    "objective": {"type": "dpo", "dpo": {"beta": BETA, "labelSmoothing": SMOOTHING}},
    "checkpoint__initializeFrom": {"uri": "/unused/base"},
    "training__sequenceLength": LENGTH,
    "optimizer": {"type": "sgd", "learningRate": RATE, "clipNorm": 0, "weightDecay": {"rate": 0}},
    "schedule__type": "constant",
}
PAIRS = [
    (["user: a"], "one", "two"),
    (["user: bb"], "2", "a lot"),
    (["user: c", "assistant: 3", "user: d"], "44", "5"),
    (["user: e"], "5", "55"),
    (["user: f"], "six", "VI"),
]
"""Length of the steps of central differences."""


def spell(prompt: list[str], answer: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of a conversation in ChatML, and the weight of each: 1 for the answer. Written again."""
    text = b""
    for turn in prompt:
        role, content = turn.split(": ")
        text += f"<|im_start|>{role}\n{content}<|im_end|>\n".encode()
    text += b"<|im_start|>assistant\n"
    end = f"{answer}<|im_end|>\n".encode()
    ids = np.frombuffer(text + end, np.uint8).astype(np.int64)[: LENGTH + 1]
    return ids, np.array([0.0] * len(text) + [1.0] * len(end))[: LENGTH + 1]


def log_prob(spec: Any, params: Any, prompt: list[str], answer: str) -> float:
    ids, weights = spell(prompt, answer)
    return -float(np.sum(row_losses(spec, params, ids) * weights[1:]))


def rewards_of(spec: Any, params: Any, reference: Any) -> np.ndarray:
    """Return the rewards of chosen and rejected answers, float64 [pairs, 2]."""
    answers = [[(prompt, answer) for answer in pair] for prompt, *pair in PAIRS]
    ratios = [[log_prob(spec, params, *one) - log_prob(spec, reference, *one) for one in pair] for pair in answers]
    return BETA * np.array(ratios)


def mean_loss(spec: Any, params: Any, reference: Any) -> float:
    """Return the mean loss of all pairs in float64."""
    chosen, rejected = rewards_of(spec, params, reference).T
    right = np.log1p(np.exp(-(chosen - rejected)))
    wrong = np.log1p(np.exp(chosen - rejected))
    return float(np.mean((1 - SMOOTHING) * right + SMOOTHING * wrong))


def make_run(tmp_path: Path, layout: Layout, **changes: Any) -> Run:
    """Return a run over all pairs, each once in a batch. Its parameters have left those of the reference."""
    records = (
        {"p": say(*prompt), "c": say(f"assistant: {one}"), "r": say(f"assistant: {other}")}
        for prompt, one, other in PAIRS
    )
    write_records(tmp_path / "text/a.jsonl", *records)
    source = {"name": "pairs", "format": "jsonl", "path": str(tmp_path / "text")}
    source |= {"prompt": "p", "chosen": "c", "rejected": "r"}
    changes = CHANGES | changes
    dataset = index_of(tmp_path, **chat_job(tmp_path, **changes, data__train=[source])).train
    assert dataset.num_sequences == len(PAIRS)
    run = Run(spec_with(**changes, training__globalBatchSize=len(PAIRS)), layout)
    run.index = dataset
    run.state = run.state._replace(params=move(run.state.params))
    return run


def move(params: Any) -> Any:
    """Return other parameters with the shardings of some."""
    rng = np.random.default_rng(7)
    return jax.tree.map(
        lambda leaf: jax.device_put(
            (np.asarray(leaf) + rng.normal(scale=0.02, size=leaf.shape)).astype(leaf.dtype), leaf.sharding
        ),
        params,
    )


def with_pairs(layout: Layout) -> Layout:
    """Return a layout for `PAIRS`, with as many pairs on a shard as it had sequences."""
    shards = layout.batch_shards * layout.accumulation * layout.microbatches
    per_shard = -(-len(PAIRS) // shards)
    padding = 2 * (per_shard * shards - len(PAIRS))
    return layout.model_copy(update={"rows_per_shard": 2 * per_shard, "padding_rows": padding})


ALONE = with_pairs(ONE)


@pytest.mark.thorough
def test_loss_and_gradient_are_those_of_the_pairs_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path, ALONE)
    before, reference = numpy_tree(run.state.params), numpy_tree(run.state.reference)
    rewards = rewards_of(run.spec, before, reference)
    rng = np.random.default_rng(3)

    (measures,) = run.train(1)

    assert float(measures.loss) == pytest.approx(mean_loss(run.spec, before, reference), abs=1e-4)
    assert abs(float(measures.loss) - np.log(2)) > 0.01, "the parameters must have left the reference"
    found = {name: float(metric) for name, metric in measures.objective.items()}
    margins = rewards[:, 0] - rewards[:, 1]
    assert found["chosen_reward"] == pytest.approx(rewards[:, 0].mean(), abs=1e-4)
    assert found["rejected_reward"] == pytest.approx(rewards[:, 1].mean(), abs=1e-4)
    assert found["reward_margin"] == pytest.approx(margins.mean(), abs=1e-4)
    assert found["reward_accuracy"] == pytest.approx((margins > 0).mean())
    after = numpy_tree(run.state.params)
    gradients = jax.tree.map(lambda old, new: (old - new) / RATE, before, after)
    check_gradients(lambda leaves: mean_loss(run.spec, leaves, reference), before, gradients, rng)


@pytest.mark.thorough
@each("layout", LAYOUTS, "context 4, tensor 2, accumulation 2")
def test_the_loss_does_not_depend_on_the_layout(tmp_path: Path, layout: Layout) -> None:
    check_equal(tmp_path, layout)


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", ["circular", "oneForwardOneBackward"])
def test_the_loss_does_not_depend_on_the_schedule_of_a_pipeline(tmp_path: Path, schedule: str) -> None:
    changes = {"parallelism__pipeline": {"schedule": schedule}, "model__numLayers": 4}
    check_equal(tmp_path, LAYOUTS["2 stages, fsdp 2, tensor 2, 4 microbatches"], **changes)


@pytest.mark.thorough
def test_chunks_of_the_logits_change_no_loss(tmp_path: Path) -> None:
    check_equal(tmp_path, LAYOUTS["data 2, fsdp 2, tensor 2, accumulation 2"], memory={"lossChunks": 4})


def check_equal(tmp_path: Path, layout: Layout, **changes: Any) -> None:
    """Check that a layout and a spec change neither losses nor metrics of one device."""
    plain = {name: value for name, value in changes.items() if name.startswith("model")}
    alone = make_run(tmp_path / "a", ALONE, **plain)
    spread = make_run(tmp_path / "b", with_pairs(layout), **changes)
    for want, found in zip(alone.train(3), spread.train(3), strict=True):
        assert float(found.loss) == pytest.approx(float(want.loss), abs=1e-4)
        assert float(found.grad_norm) == pytest.approx(float(want.grad_norm), abs=1e-3)
        for name, metric in want.objective.items():
            assert float(found.objective[name]) == pytest.approx(float(metric), abs=1e-3), name


def test_held_out_pairs_are_compared_with_the_reference(tmp_path: Path) -> None:
    run = make_run(tmp_path, ALONE)
    before, reference = numpy_tree(run.state.params), numpy_tree(run.state.reference)
    batch = run.batches.held_out_batch(run.index, 0)  # type: ignore[arg-type]

    sums = run.score(run.state.params, batch)

    margins = -np.diff(rewards_of(run.spec, before, reference)).reshape(-1)
    assert float(sums.weight) == len(PAIRS)
    assert float(sums.loss / sums.weight) == pytest.approx(mean_loss(run.spec, before, reference), abs=1e-4)
    assert float(sums.pairs["reward_margin"]) == pytest.approx(margins.sum(), abs=1e-3)
    assert (float(sums.hits), float(sums.num_bytes)) == ((margins > 0).sum(), 0)


@pytest.mark.thorough
def test_the_reference_stays_and_pairs_are_learned(tmp_path: Path) -> None:
    run = make_run(tmp_path, ALONE)
    before = flat(run.state.reference)

    *_, measures = run.train(20)

    assert float(measures.objective["reward_accuracy"]) == 1.0
    assert all(np.array_equal(before[name], leaf) for name, leaf in flat(run.state.reference).items())


@pytest.mark.thorough
def test_a_checkpoint_restores_the_reference(tmp_path: Path) -> None:
    run = make_run(tmp_path, with_pairs(LAYOUTS["fsdp 8"]))

    restored = check_restored(tmp_path, run)

    assert restored.reference is not None
    shardings = (jax.tree.map(lambda leaf: leaf.sharding, tree) for tree in (restored.reference, run.state.params))
    assert next(shardings) == next(shardings)


@pytest.mark.thorough
def test_the_reference_of_adapters_is_a_copy_of_adapters(tmp_path: Path) -> None:
    lora = {"rank": 2, "alpha": 4, "targets": ["*.attention.query"]}
    run = make_run(tmp_path, ALONE, lora=lora)

    list(run.train(2))

    assert len(flat(run.state.reference)) == 2


PROGRAMS: dict[str, dict[str, Any]] = {
    "whole logits": {},
    "chunks": {"memory__lossChunks": 4},
    "a frozen head": {"optimizer": {"learningRate": 0.1, "trainable": ["*.mlp.*"]}},
}


@pytest.mark.thorough
@each("changes", PROGRAMS, "chunks")
def test_a_compiled_step_has_the_flops_of_the_plan(changes: dict[str, Any]) -> None:
    spec, layout = spec_with(**CHANGES | changes), make_layout(accumulation=2)
    config = RunConfig(
        job=JobIdentity(name="tiny", namespace="", uid=""), spec=spec, accelerator_platform="cpu", layouts=(layout,)
    )

    assert compile_step(config, layout).flops == count_step_flops(describe_workload(spec), layout)


@pytest.mark.thorough
def test_experts_and_pairs_do_not_depend_on_the_layout(tmp_path: Path) -> None:
    """The statistics of both sequences of a pair count alike, and padding sequences count nothing."""
    layout = LAYOUTS["fsdp over slices, 6 shards, accumulation 2, padding"]

    check_equal(tmp_path, layout, model__experts={"count": 4, "perToken": 2})


@pytest.mark.thorough
def test_dropout_changes_the_model_and_not_its_reference(tmp_path: Path) -> None:
    plain, dropping = (
        make_run(tmp_path / name, ALONE, model__dropout={"residual": rate}) for name, rate in (("a", 0), ("b", 0.5))
    )

    want, found = (
        run.steps._add_reference(run.state.params, run.state.reference, run.batch(1))[1].reference_log_probs
        for run in (plain, dropping)
    )
    losses = [float(next(run.train(1)).loss) for run in (plain, dropping)]

    np.testing.assert_array_equal(want, found)
    assert losses[0] != pytest.approx(losses[1], abs=1e-3)
