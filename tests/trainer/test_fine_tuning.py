"""Fine-tuning: loss and gradient of packed conversations are those of each conversation alone, in NumPy."""

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
from tests.support.trainer.training import ONE, Run, numpy_tree, spec_with
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.world import Layout

RATE = 1.0
LENGTH = 128
CHANGES: dict[str, Any] = {
    "objective": {"type": "sft"},
    "data__packing": {"type": "bestFit"},
    "training__sequenceLength": LENGTH,
    "optimizer": {
        "type": "sgd",
        "learningRate": RATE,
        "clipNorm": 0,
        "weightDecay": {"rate": 0},
    },
    "schedule__type": "constant",
}
CONVERSATIONS = [
    ["user: a", "assistant: one"],
    ["user: bb", "assistant: 2"],
    ["user: c", "assistant: 33", "user: d", "assistant: 4"],
    ["system: s", "user: e", "assistant: 5"],
    ["user: f", "assistant: 66"],
]
"""Length of the steps of central differences."""


def spell(turns: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of a conversation in ChatML, and the weight of each, written again."""
    text, weights = b"", []
    for turn in turns:
        role, content = turn.split(": ")
        begin, rest = f"<|im_start|>{role}\n".encode(), f"{content}<|im_end|>\n".encode()
        text += begin + rest
        weights += [0.0] * len(begin) + [float(role == "assistant")] * len(rest)
    return np.frombuffer(text, np.uint8).astype(np.int64), np.array(weights)


def mean_loss(spec: Any, params: Any) -> float:
    """Return the mean loss of all tokens of answers, one conversation after another, in float64."""
    total = weight = 0.0
    for ids, weights in map(spell, CONVERSATIONS):
        total += float(np.sum(row_losses(spec, params, ids) * weights[1:]))
        weight += float(np.sum(weights[1:]))
    return total / weight


def make_run(tmp_path: Path, layout: Layout) -> Run:
    """Return a run over the packed conversations, each once in a batch."""
    write_records(tmp_path / "text/a.jsonl", *({"messages": say(*turns)} for turns in CONVERSATIONS))
    dataset = index_of(tmp_path, **chat_job(tmp_path, **CHANGES)).train
    run = Run(spec_with(**CHANGES, training__globalBatchSize=dataset.num_sequences), layout)
    run.index = dataset
    return run


@pytest.mark.thorough
def test_loss_and_gradient_are_those_of_the_conversations_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path, ONE)
    before = numpy_tree(run.state.params)
    rng = np.random.default_rng(3)
    assert len(CONVERSATIONS) > run.index.num_sequences, "several conversations must share a sequence"

    (measures,) = run.train(1)

    assert float(measures.loss) == pytest.approx(mean_loss(run.spec, before), abs=1e-4)
    after = numpy_tree(run.state.params)
    gradients = jax.tree.map(lambda old, new: (old - new) / RATE, before, after)
    check_gradients(lambda leaves: mean_loss(run.spec, leaves), before, gradients, rng)


@pytest.mark.thorough
@each(
    "layout",
    {name: LAYOUTS[name] for name in LAYOUTS if "accumulation" in name or "stages" in name},
    "context 4, tensor 2, accumulation 2",
)
def test_the_loss_does_not_depend_on_the_layout(tmp_path: Path, layout: Layout) -> None:
    alone, spread = (make_run(tmp_path / name, one) for name, one in (("a", ONE), ("b", layout)))

    assert [float(one.loss) for one in spread.train(3)] == pytest.approx(
        [float(one.loss) for one in alone.train(3)], abs=1e-4
    )


@pytest.mark.thorough
def test_answers_are_learned(tmp_path: Path) -> None:
    run = make_run(tmp_path, ONE)

    losses = [float(one.loss) for one in run.train(30)]

    assert losses[-1] < losses[0] / 4
