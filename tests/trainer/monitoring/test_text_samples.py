"""Text samples: which are due, what they contain, and prompts that are too long."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.trainer.chat import CHATML, make_folder
from tests.support.trainer.texts import grow, make_tokenizer
from tests.support.trainer.tiny import make_spec
from trainingjob_api.decoding import find_decoding_shape
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.monitoring.text_samples import TextSampler
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.sampling.token_programs import TokenPrograms
from trainingjob_trainer.state import Signal

SAMPLES = [
    {"name": "often", "path": "/held-out", "everySteps": 10, "samples": [{"prompt": "ab", "maxTokens": 3}]},
    {
        "name": "seldom",
        "path": "/held-out",
        "everySteps": 20,
        "samples": [{"prompt": "c"}, {"prompt": "defg", "maxTokens": 2, "everySteps": 40, "temperature": 0.5}],
    },
]


class Counting:
    """Programs whose next token is the one after the last."""

    def __init__(self, spec: TrainingJobSpec) -> None:
        shape = find_decoding_shape(spec)
        assert shape
        self.draws: list[Any] = []
        self.programs = TokenPrograms(shape, dict, self._read, self._advance, lambda values: values)  # type: ignore[arg-type, return-value]

    def _read(self, params: Any, cache: Any, tokens: Any, first: Any) -> Any:
        return cache

    def _advance(self, params: Any, cache: Any, tokens: Any, position: Any, draw: Any, asked: Any) -> Any:
        self.draws.append(draw)
        return cache, np.asarray(tokens) + 1, asked


def make(root: Path, **changes: Any) -> tuple[TextSampler, Counting]:
    spec = TrainingJobSpec.model_validate(
        make_spec(root, root, **{"evaluation": SAMPLES, "training__steps": 1000} | changes)
    )
    counting = Counting(spec)
    steps: Any = SimpleNamespace(signals=int)
    return TextSampler(spec, steps, counting.programs), counting


DUE = {
    "no step of an evaluation": (15, {}),
    "one evaluation": (10, {"ab": "cde"}),
    "a sample with more steps than its evaluation is not due": (20, {"ab": "cde", "c": "defghijk"}),
    "all": (40, {"ab": "cde", "c": "defghijk", "defg": "hi"}),
    "the last step": (1000, {"ab": "cde", "c": "defghijk", "defg": "hi"}),
}


@pytest.mark.parametrize(("step", "want"), DUE.values(), ids=DUE)
def test_samples_are_written_after_their_evaluations(step: int, want: dict[str, str], tmp_path: Path) -> None:
    evaluation = [SAMPLES[0], SAMPLES[1] | {"samples": [{"prompt": "c", "maxTokens": 8}, SAMPLES[1]["samples"][1]]}]  # type: ignore[index]
    sampler, counting = make(tmp_path, evaluation=evaluation, training__seed=7)
    entered: list[str] = []

    texts = sampler.write(step, {}, lambda: Signal.NONE, entered.append)

    assert texts is not None
    assert {one.prompt: one.text for one in texts} == want
    assert entered == [f"token {number + 1} of the text samples" for number in range(len(entered))]
    assert bool(entered) == bool(want)
    if step == 40:
        (draw, *_) = counting.draws
        assert (draw.seed, draw.step) == (7, 40)
        np.testing.assert_array_equal(draw.temperatures, [0, 0, 0.5])
        assert texts[2]._asdict() == {
            "evaluation": "seldom",
            "number": 1,
            "prompt": "defg",
            "text": "hi",
            "num_tokens": 2,
            "temperature": 0.5,
        }


def test_a_signal_interrupts_the_samples(tmp_path: Path) -> None:
    sampler, _ = make(tmp_path)

    assert sampler.write(10, {}, lambda: Signal.EXIT, lambda _: None) is None


def test_a_job_without_samples_writes_none(tmp_path: Path) -> None:
    spec = TrainingJobSpec.model_validate(make_spec(tmp_path, tmp_path))
    unused: Any = None

    assert TextSampler(spec, unused, None).write(10, {}, lambda: Signal.NONE, lambda _: None) == []


def one_sample(**sample: Any) -> dict[str, Any]:
    return {"evaluation": [SAMPLES[0] | {"samples": [sample]}]}


def test_a_text_may_fill_the_table_of_positions_and_not_more(tmp_path: Path) -> None:
    learned = {"model__positions": "learned", "model__maxPositions": 16}
    make(tmp_path, **learned, **one_sample(prompt="abcd", maxTokens=12))

    with pytest.raises(TrainingError) as raised:
        make(tmp_path, **learned, **one_sample(prompt="abcd", maxTokens=13))

    assert raised.value.path == "spec.evaluation[0].samples[0].maxTokens"
    assert str(raised.value).endswith(
        "must be at most 12: the prompt has 4 tokens, and spec.model.maxPositions is 16. Nearest legal value: 12."
    )


TALK = [{"role": "user", "content": "Hi"}]


def make_chat(root: Path, template: str = CHATML, **changes: Any) -> tuple[TextSampler, Counting]:
    path = grow(root, **{"chat.jinja": template}) / "chat.jinja"
    tokenizer = {"type": "byte", "chatTemplate": {"path": str(path)}}
    return make(root, **{"tokenizer": tokenizer, **one_sample(messages=TALK, maxTokens=3), **changes})


def test_a_conversation_is_continued_in_the_text_of_the_template(tmp_path: Path) -> None:
    sampler, _ = make_chat(tmp_path, CHATML.replace("assistant\n", "assistant:a"))

    texts = sampler.write(10, {}, lambda: Signal.NONE, lambda _: None)

    assert texts
    assert texts[0].prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant:a"
    assert texts[0].text == "bcd"


def test_the_special_token_after_a_turn_ends_an_answer(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", CHATML)
    changes = {"tokenizer": {"type": "huggingFace", "path": str(folder)}, "model__vocabSize": 300}
    sampler, _ = make(tmp_path, **changes, **one_sample(messages=TALK, maxTokens=30))
    end = sampler._encoder.find_special_token("<|im_end|>\n")
    start = sampler._encoder.find_special_token("<|im_start|>")

    assert (end, sampler._ends) == (start + 1, {end, sampler._encoder.end})  # type: ignore[operator]
    (row,) = sampler._rows.values()
    assert row.prompt.ids.count(end) == 1
    assert row.prompt.ids.count(start) == 2
    assert sampler._encoder.decode(row.prompt.ids) == row.text


def test_a_template_that_adds_too_much_is_named_with_what_is_left(tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as raised:
        make_chat(tmp_path, "{{ 'a' * 290 }}" + CHATML)

    assert raised.value.path == "spec.evaluation[0].samples[0].maxTokens"
    assert "must be at most " in str(raised.value)
    assert "tokens by the bytes of the messages" in str(raised.value)


@pytest.mark.parametrize(
    ("template", "want"),
    [
        (
            "{{ raise_exception('no users') }}",
            "spec.evaluation[0].samples[0].messages: the template refuses the messages",
        ),
        ("{% for %}", "is not a valid Jinja template"),
    ],
)
def test_a_template_that_fails_is_named(template: str, want: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as raised:
        make_chat(tmp_path, template)

    assert raised.value.path == "spec.tokenizer.chatTemplate.path"
    assert want in str(raised.value)


def test_a_missing_template_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="must be set: `type: byte` has no chat template") as raised:
        make(tmp_path, **one_sample(messages=TALK))

    assert raised.value.path == "spec.tokenizer.chatTemplate"


def test_a_prompt_must_have_tokens(tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "tokenizer.json", "the", "<unk>")
    tokenizer = {"type": "tokenizers", "path": str(tmp_path / "tokenizer.json")}

    with pytest.raises(TrainingError, match="must have a token or more") as raised:
        make(tmp_path, tokenizer=tokenizer, **one_sample(prompt="  "))

    assert raised.value.path == "spec.evaluation[0].samples[0].prompt"
