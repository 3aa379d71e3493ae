"""Scores of a folder of weights: those of the job that saved them, and texts that cannot be scored."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.trainer.huggingface import FOLDER, Fixture, to_host
from tests.support.trainer.tiny import make_spec
from tests.support.trainer.training import ONE, Run, spec_with
from tests.trainer.sampling.test_sample_text import WORDS, checkpoint, make_tokenizer, save_steps
from trainingjob_api.spec.data import TextSource
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.weights_exchange import EvaluateReport, EvaluateRequest, ExchangeAnswer, ExchangeProgress
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.data.token_cache import TokenDataset
from trainingjob_trainer.huggingface.safetensors import WeightsError
from trainingjob_trainer.objectives.scoring import Scores, add_sums
from trainingjob_trainer.weights_exchange.evaluate_text import evaluate_text

__all__ = ["checkpoint"]
TEXT = "".join(chr(97 + place * 7 % 26) for place in range(400))


def evaluate(path: Path, *texts: Path, **options: Any) -> tuple[EvaluateReport, list[ExchangeProgress]]:
    """Return the report and the progress."""
    values = {"step": None, "tokenizer": None, "spec": None, "sequence_length": None} | options
    sources = tuple(TextSource(name=f"data-{number}", path=str(one)) for number, one in enumerate(texts))
    answers: list[ExchangeAnswer] = []
    evaluate_text(EvaluateRequest(path=str(path), texts=sources, **values), answers.append)
    report = answers[-1].evaluated
    assert report
    return report, [answer.progress for answer in answers if answer.progress]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "held-out.txt"
    path.write_text(TEXT)
    return path


def scores_of_job(steps: int, tokens: list[int], num_batches: int) -> Scores:
    """Return the scores that a job measures after some steps."""
    run = Run(spec_with(training__steps=6), ONE)
    list(run.train(steps))
    return scores_of_run(run, tokens, num_batches)


def scores_of_run(run: Run, tokens: list[int], num_batches: int) -> Scores:
    """Return the scores of the state of a run."""
    sizes = np.ones(257, np.uint32)
    sizes[256] = 0
    index = TokenDataset("", np.array(tokens, np.uint16), 16, token_bytes=sizes)
    batches = BatchLoader(ONE, run.steps.batch_sharding, 8)
    totals = None
    for number in range(batches.count_held_out(index, num_batches)):
        totals = add_sums(totals, run.score(run.state.params, batches.held_out_batch(index, number)))
    assert totals
    return Scores.from_sums(totals)


def test_a_checkpoint_has_the_scores_that_its_job_measures(checkpoint: Path, text: Path) -> None:
    for step in (1, 2):
        report, progress = evaluate(checkpoint, text, step=step)

        (found,) = report.texts
        want = scores_of_job(step, [*TEXT.encode(), 256], 99)
        assert (report.step, report.sequence_length) == (step, 16)
        assert (found.num_sequences, found.num_predictions) == (25, 400)
        assert (found.loss, found.accuracy, found.bits_per_byte) == pytest.approx(want[:3], rel=1e-5)
        assert [(one.done, one.total) for one in progress][-1] == (25, 25)


@pytest.mark.thorough
@pytest.mark.parametrize("quantization", [None, "int8"])
def test_adapters_are_part_of_the_model(quantization: str | None, tmp_path: Path, text: Path) -> None:
    lora = {"rank": 2, "alpha": 64, "targets": ["*.attention.*", "*.mlp.up"], "baseQuantization": quantization}
    run = Run(spec_with(training__steps=6, lora=lora, optimizer__learningRate=0.03), ONE)
    save_steps(tmp_path, run, lora=lora)

    report, _ = evaluate(tmp_path, text)

    want = scores_of_run(run, [*TEXT.encode(), 256], 99)
    assert report.texts[0].loss == pytest.approx(want.loss, rel=1e-4)


def test_adapters_of_an_unknown_scale_are_refused(tmp_path: Path, text: Path) -> None:
    lora = {"rank": 2, "alpha": 64, "targets": ["*.attention.query"]}
    save_steps(tmp_path, Run(spec_with(training__steps=6, lora=lora), ONE))

    with pytest.raises(WeightsError, match=r"step 2 of .* has adapters without their scale"):
        evaluate(tmp_path, text)


def test_the_evaluations_of_a_job_are_run_with_their_numbers_of_batches(checkpoint: Path, text: Path) -> None:
    held_out = {"name": "news", "path": str(text), "everySteps": 10, "numBatches": 2}
    spec = TrainingJobSpec.model_validate(
        make_spec(
            text,
            text,
            evaluation=[held_out, {**held_out, "name": "all", "numBatches": "all", "maxPerDeviceBatch": 1}],
            training__globalBatchSize=8,
        )
    )

    report, _ = evaluate(checkpoint, spec=spec)

    few, whole = report.texts
    assert [(one.name, one.num_sequences) for one in report.texts] == [("news", 16), ("all", 25)]
    assert (few.loss, few.accuracy, few.bits_per_byte) == pytest.approx(
        scores_of_job(2, [*TEXT.encode(), 256], 2)[:3], rel=1e-5
    )
    assert whole.loss != few.loss


@pytest.mark.parametrize(
    ("changes", "num_sequences"),
    [
        ({"training__batchSchedule": [{"fromStep": 3, "globalBatchSize": 16}]}, 16),
        ({"slices__count": None, "slices__min": 1, "slices__max": 4, "parallelism__replicas": {"syncEvery": 2}}, 2),
    ],
    ids=["larger batches later", "replicas"],
)
def test_a_batch_of_an_evaluation_is_that_of_the_job(
    changes: dict[str, Any], num_sequences: int, checkpoint: Path, text: Path
) -> None:
    held_out = {"name": "news", "path": str(text), "everySteps": 10, "numBatches": 1}
    spec = TrainingJobSpec.model_validate(
        make_spec(text, text, evaluation=[held_out], training__globalBatchSize=8, **changes)
    )

    report, _ = evaluate(checkpoint, spec=spec)

    assert report.texts[0].num_sequences == num_sequences


def test_sequences_may_have_another_length(checkpoint: Path, text: Path) -> None:
    report, _ = evaluate(checkpoint, text, sequence_length=40)

    assert (report.sequence_length, report.texts[0].num_sequences) == (40, 10)


def test_published_weights_have_the_scores_of_their_logits(tmp_path: Path) -> None:
    fixture = Fixture("llama")
    shutil.copytree(FOLDER / "llama", tmp_path / "llama")
    tokenizer, text = make_tokenizer(tmp_path), tmp_path / "text.txt"
    ids = [number * 5 % 60 for number in range(33)]
    text.write_text(" ".join(WORDS[one] for one in ids))
    logits = np.asarray(fixture.split().apply(to_host(fixture.load()), np.array([ids[:32]]))[0], np.float64)

    report, _ = evaluate(tmp_path / "llama", text, tokenizer=str(tokenizer), sequence_length=32)

    losses = np.log(np.exp(logits).sum(axis=-1)) - logits[np.arange(32), ids[1:]]
    sizes = [0 if one == 0 else 1 + len(WORDS[one]) for one in ids[1:]]
    (found,) = report.texts
    assert report.step is None
    assert found.loss == pytest.approx(losses.mean(), rel=1e-5)
    assert found.accuracy == pytest.approx(np.mean(np.argmax(logits, axis=-1) == ids[1:]))
    assert found.bits_per_byte == pytest.approx(losses.sum() / math.log(2) / sum(sizes), rel=1e-5)


def test_each_text_that_cannot_be_scored_is_named_with_the_reason(checkpoint: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("ab")
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.md").write_text("ab")
    job = TrainingJobSpec.model_validate(
        make_spec(short, short, evaluation=[{"name": "news", "path": str(tmp_path / "missing"), "everySteps": 10}])
    )
    wrong: list[tuple[dict[str, Any], list[Path], str]] = [
        ({}, [short], f"--data: {short}: 1 file gives 3 tokens, and one row takes 17. Add text."),
        (
            {},
            [other],
            f"--data: {other}: no file below {other} matches `**/*.txt`. It has 1 file: a.md. Name the file",
        ),
        ({"spec": job}, [], f"spec.evaluation[0].path: {tmp_path / 'missing'} "),
    ]

    for options, texts, message in wrong:
        with pytest.raises(WeightsError) as caught:
            evaluate(checkpoint, *texts, **options)
        assert str(caught.value).startswith(message)


def test_a_sequence_is_at_most_as_long_as_the_positions(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "learned")
    path = tmp_path / "learned/model.json"
    path.write_text(path.read_text().replace('"maxPositions": null', '"maxPositions": 16'))

    with pytest.raises(WeightsError, match="--sequence-length: 17 must be at most 16"):
        evaluate(tmp_path / "learned", text, sequence_length=17)
