"""Text from a folder of weights: a job's checkpoint, or published weights; and folders that cannot be used."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.support.trainer.huggingface import FOLDER, Fixture, to_host
from tests.support.trainer.shelf import list_steps, step_path
from tests.support.trainer.texts import grow
from tests.support.trainer.tiny import make_config, make_spec, make_world
from tests.support.trainer.training import ONE, Run, spec_with
from tests.trainer.sampling.test_generate import Prompt, Randomness, Writer
from trainingjob_api.decoding import DecodingShape
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.weights_exchange import ExchangeAnswer, SampleReport, SampleRequest
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.data.model_files import keep_model_files, read_model_file
from trainingjob_trainer.data.tokenizers import DocumentEncoder
from trainingjob_trainer.huggingface.safetensors import WeightsError
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.weights_exchange.sample_text import sample_text

WORDS = [f"w{number}" for number in range(64)]


def sample(path: Path, prompt: str, **options: Any) -> tuple[str, SampleReport]:
    """Return the text and the report."""
    values = {"max_tokens": None, "temperature": None, "seed": 0, "step": None, "tokenizer": None} | options
    answers: list[ExchangeAnswer] = []
    sample_text(SampleRequest(path=str(path), prompt=prompt, **values), answers.append)
    report = answers[-1].sampled
    assert report
    return "".join(answer.text for answer in answers), report


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint folder of a job with bytes as tokens, and steps 0 and 1."""
    folder = tmp_path_factory.mktemp("run")
    # all tensors are trained, so that each step needs frozen ones that no other step has
    save_steps(folder, Run(spec_with(training__steps=6), ONE), optimizer__trainable=["layers.*"])
    return folder


def save_steps(folder: Path, run: Run, **changes: Any) -> None:
    """Train and save steps 1 and 2 below a folder, with changes of the spec that is saved."""
    keep_model_files(open_store(folder), run.spec)
    with (folder / "events").open("wb", buffering=0) as file:
        world, peers = make_world(1, 1), ProcessGroup(0, 1)
        config = make_config(make_spec(folder, folder, **changes))
        for step in (1, 2):
            list(run.train(1))
            checkpoints = Checkpoints(str(folder), config, world, peers, "index", AgentEvents(file.fileno()))
            checkpoints.save(step, run.state)
            checkpoints.wait()
    assert list_steps(folder / "lineage-0") == ["1", "2"]


def tokens_of_job(prompt: str, steps: int, randomness: Randomness, temperature: float | None) -> list[int]:
    """Return the tokens that a job writes after some steps."""
    spec = spec_with(training__steps=6)
    run = Run(spec, ONE)
    list(run.train(steps))
    writer = Writer(spec, ONE, DecodingShape(1, len(prompt) + 8))
    writer.params = run.state.params
    texts, _ = writer.write({0: Prompt(list(prompt.encode()), 8, temperature)}, randomness, ends=(256,))
    return texts[0]


@pytest.mark.thorough
@pytest.mark.parametrize("temperature", [None, 1.0])
def test_a_checkpoint_writes_what_its_job_writes(checkpoint: Path, temperature: float | None) -> None:
    for step in (1, 2):
        text, report = sample(checkpoint, "the", max_tokens=8, temperature=temperature, seed=5, step=step)

        want = tokens_of_job("the", step, Randomness(5, step), temperature)
        assert text == bytes(token for token in want if token < 256).decode(errors="replace")
        assert report == SampleReport(step=step, num_tokens=len(want), is_ended=len(want) < 8)


def test_the_newest_step_is_used_and_the_text_is_as_long_as_the_sequences_allow(checkpoint: Path) -> None:
    _, report = sample(checkpoint, "the")

    assert (report.step, report.num_tokens) == (2, 16 - 3)


def make_tokenizer(folder: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="w1 $A", special_tokens=[("w1", 1)])
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.mark.thorough
def test_published_weights_write_their_most_likely_tokens(tmp_path: Path) -> None:
    fixture = Fixture("llama")
    shutil.copytree(FOLDER / "llama", tmp_path / "llama")
    (tmp_path / "llama/generation_config.json").unlink()
    tokenizer = make_tokenizer(tmp_path)
    model, params = fixture.split(), to_host(fixture.load())
    ids = [1, 7, 9]  # the tokenizer's file begins a text with 1
    for _ in range(5):
        ids.append(int(np.argmax(model.apply(params, np.array([ids]))[0, -1])))

    text, report = sample(tmp_path / "llama", "w7 w9", max_tokens=5, tokenizer=str(tokenizer))

    assert text.split() == [WORDS[one] for one in ids[3:]]
    assert report == SampleReport(step=None, num_tokens=5, is_ended=False)
    (tmp_path / "llama/generation_config.json").write_text(json.dumps({"eos_token_id": [ids[4], 999]}))
    shutil.copy(tokenizer, tmp_path / "llama")
    shorter, report = sample(tmp_path / "llama", "w7 w9", max_tokens=5)
    assert shorter.split() == [WORDS[one] for one in ids[3 : 3 + ids[3:].index(ids[4])]]
    assert report.is_ended


def test_a_character_of_several_tokens_is_sent_whole(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*arguments: Any, on_token: Callable[[int, int], None], **options: Any) -> dict[int, list[int]]:
        ids = [*"é".encode(), ord("a"), 0xE2]
        for token in ids:
            on_token(0, token)
        return {0: ids}

    monkeypatch.setattr("trainingjob_trainer.weights_exchange.sample_text.generate", write)
    answers: list[ExchangeAnswer] = []

    request = SampleRequest(
        path=str(checkpoint), prompt="a", max_tokens=4, temperature=None, seed=0, step=None, tokenizer=None
    )
    sample_text(request, answers.append)

    assert [answer.text for answer in answers] == ["é", "a", "\ufffd", ""]


def test_each_folder_that_cannot_be_used_is_named_with_the_reason(checkpoint: Path, tmp_path: Path) -> None:
    older, damaged, unreadable = (
        shutil.copytree(checkpoint, tmp_path / name) for name in ("older", "damaged", "unread")
    )
    (older / "model.json").unlink()
    (unreadable / "model.json").write_text('{"model": {}}')
    for step in (1, 2):
        next(
            path for path in step_path(damaged, step).rglob("*") if path.is_file() and path.stat().st_size > 100
        ).write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    shutil.copytree(FOLDER / "llama", tmp_path / "llama")

    for path, options, kind, words in (
        (tmp_path / "empty", {}, WeightsError, "must be a checkpoint folder of a job"),
        (older, {}, WeightsError, "has no model.json, because an older trainer wrote it"),
        (unreadable, {}, ValueError, "model.json cannot be read"),
        (damaged, {}, TrainingError, "holds no intact step of a TrainingJob"),
        (checkpoint, {"step": 7}, TrainingError, "holds no intact step 7"),
        (checkpoint, {"prompt": "x" * 16}, WeightsError, "--prompt has 16 tokens, and must have fewer than the 16"),
        (checkpoint, {"max_tokens": 14}, WeightsError, "--max-tokens: 14 must be at most 13"),
        (tmp_path / "llama", {}, WeightsError, "has no tokenizer.json: name one with --tokenizer"),
        (tmp_path / "llama", {"step": 3}, WeightsError, "has no steps"),
    ):
        with pytest.raises(kind, match=words):
            sample(path, **{"prompt": "the"} | options)


def test_a_folder_keeps_what_is_needed_to_use_its_steps(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path)
    spec = TrainingJobSpec.model_validate(
        make_spec(tmp_path, tmp_path, tokenizer={"type": "tokenizers", "path": str(tokenizer), "endOfDocument": "w1"})
    )
    store = open_store(tmp_path / "run")

    keep_model_files(store, spec)
    first = (tmp_path / "run/model.json").read_bytes()
    tokenizer.write_text("changed")
    keep_model_files(store, spec)

    assert json.loads(first)["model"]["embedDim"] == 16
    assert (tmp_path / "run/model.json").read_bytes() == first
    assert (tmp_path / "run/tokenizer.json").read_text() != "changed", "the steps belong to the first tokenizer"


def test_a_checkpoint_keeps_the_folder_of_its_tokenizer(tmp_path: Path) -> None:
    folder, run = tmp_path / "model", tmp_path / "run"
    grow(folder, **{"tokenizer_config.json": '{"bos_token": "w1", "eos_token": "w2", "chat_template": "t"}'})
    make_tokenizer(folder)
    run.mkdir()
    spec = make_config(make_spec(run, tmp_path, tokenizer={"type": "huggingFace", "path": str(folder)})).spec

    keep_model_files(open_store(run), spec)

    kept = read_model_file(open_store(run))
    assert kept
    encoder = DocumentEncoder(kept.tokenizer.model_copy(update={"path": str(run)}), kept.model.vocab_size)
    assert (encoder.end, encoder.encode_prompt("w7 w9")) == (2, [1, 7, 9])
    assert not (run / "README.md").exists()


def test_files_that_cannot_be_kept_cost_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = TrainingJobSpec.model_validate(
        make_spec(tmp_path, tmp_path, tokenizer={"type": "tokenizers", "path": "/no"})
    )

    keep_model_files(open_store(tmp_path / "run"), spec)

    assert "cannot describe the model in the checkpoint folder" in caplog.text
