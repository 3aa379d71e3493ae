"""Datasets of records with answers: their tokens, their loss weights, and what is cut, skipped or rejected."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from tests.support.trainer.chat import (
    CHATML,
    GEMMA,
    LLAMA3,
    MARKED_CHATML,
    SPECIAL,
    chat_job,
    make_folder,
    say,
    write_records,
)
from tests.support.trainer.texts import fail, grow, index_of
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.data.token_cache import JobDatasets
from trainingjob_trainer.data.token_dataset import TokenDataset

TURNS = say("user: Hi!", "assistant: Hello.")


def make_chat(folder: Path, *conversations: Any, **changes: Any) -> JobDatasets:
    """Return the datasets of a fine-tuning job on conversations."""
    write_records(folder / "text/a.jsonl", *({"messages": one} for one in conversations))
    return index_of(folder, **{"training__sequenceLength": 80, **chat_job(folder), **changes})


def answers_of(dataset: TokenDataset) -> bytes:
    """Return the bytes with a loss, which are the tokens of the byte tokenizer."""
    assert dataset.token_weights is not None
    return bytes(dataset.tokens[dataset.token_weights > 0].tolist())


def test_tokens_of_the_assistant_have_a_loss(tmp_path: Path) -> None:
    made = make_chat(tmp_path, TURNS * 2, TURNS)

    assert bytes(made.train.tokens.tolist()).startswith(b"<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n")
    assert answers_of(made.train) == b"Hello.<|im_end|>\n" * 2
    assert len(made.train.tokens) == 81 + 70
    assert made.report.sources[0].documents == 2


def test_tools_and_their_calls_reach_the_template(tmp_path: Path) -> None:
    template = (
        "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for message in messages %}<{{ message.role }}>"
        "{% for call in message.tool_calls or [] %}{{ call.name }}(){% endfor %}{{ message.content or '' }}\n"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    grow(tmp_path, **{"tools.jinja": template})
    call = {"role": "assistant", "tool_calls": [{"name": "now"}]}
    turns = [{"role": "user", "content": "Time?"}, call, {"role": "tool", "content": "9"}, *say("assistant: Nine.")]
    write_records(tmp_path / "text/a.jsonl", {"m": turns, "t": '[{"name": "now"}]'}, {"m": turns[:2], "t": None})
    source = {"name": "t", "format": "jsonl", "path": str(tmp_path / "text"), "messages": "m", "tools": "t"}
    tokenizer = {"type": "byte", "chatTemplate": {"path": str(tmp_path / "tools.jinja")}}

    train = index_of(
        tmp_path, objective={"type": "sft"}, data__train=[source], tokenizer=tokenizer, training__sequenceLength=80
    ).train

    text = bytes(train.tokens.tolist()).decode()
    assert train.token_weights is not None
    weights = train.token_weights.tolist()
    first = '[{"name": "now"}]\n<user>Time?\n<assistant>now()\n<tool>9\n<assistant>Nine.\n'
    assert text == first + "<user>Time?\n<assistant>now()\n"
    assert "".join(letter for letter, weight in zip(text, weights, strict=True) if weight) == "now()\nNine.\nnow()\n"


def test_all_tokens_have_a_loss_if_the_spec_says_so(tmp_path: Path) -> None:
    made = make_chat(tmp_path, TURNS, TURNS, objective={"type": "sft", "sft": {"lossOn": "all"}})

    assert made.train.token_weights is None


def test_other_objectives_train_on_whole_conversations(tmp_path: Path) -> None:
    made = make_chat(tmp_path, TURNS * 2, objective=None)

    assert made.train.token_weights is None
    assert (
        len(made.train.tokens) == len("<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n") * 2
    )
    assert made.report.warnings[1:] == ()


def test_a_completion_and_the_end_have_a_loss(tmp_path: Path) -> None:
    write_records(tmp_path / "text/a.jsonl", {"q": "2+2=", "a": "4 é"}, {"q": "1+1=", "a": "2"})
    source = {"name": "t", "format": "jsonl", "path": str(tmp_path / "text"), "prompt": "q", "completion": "a"}

    train = index_of(tmp_path, objective={"type": "sft"}, data__train=[source], training__sequenceLength=8).train

    assert train.tokens.tolist() == [*"2+2=4 é".encode(), 256, *b"1+1=2", 256]
    assert train.token_weights is not None
    assert train.token_weights.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1]


FAMILIES: dict[str, tuple[str, list[str], list[str]]] = {
    "ChatML": (
        CHATML,
        ["<|im_start|>", "user\nHi!", "<|im_end|>", "\n", "<|im_start|>", "assistant\n"],
        ["Hello.", "<|im_end|>", "\n"],
    ),
    "marked ChatML": (
        MARKED_CHATML,
        ["<|im_start|>", "user\nHi!", "<|im_end|>", "\n", "<|im_start|>", "assistant\n"],
        ["Hello.", "<|im_end|>"],
    ),
    "Llama 3": (
        LLAMA3,
        [
            *("<bos>", "<|start_header_id|>", "user", "<|end_header_id|>", "\n\nHi!", "<|eot_id|>"),
            *("<|start_header_id|>", "assistant", "<|end_header_id|>", "\n\n"),
        ],
        ["Hello.", "<|eot_id|>"],
    ),
    "Gemma": (
        GEMMA,
        ["<bos>", "<start_of_turn>", "user\nHi!", "<end_of_turn>", "\n", "<start_of_turn>", "model\n"],
        ["Hello.", "<end_of_turn>", "\n"],
    ),
}


@pytest.mark.parametrize(("template", "prompt", "answer"), FAMILIES.values(), ids=FAMILIES.keys())
def test_ids_of_a_conversation_are_those_of_its_family(
    tmp_path: Path, template: str, prompt: list[str], answer: list[str]
) -> None:
    folder = make_folder(tmp_path / "model", template)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled = {" ": "Ġ", "\n": "Ċ"}

    def number(parts: list[str]) -> list[int]:
        found = []
        for part in parts:
            special = [256 + SPECIAL.index(part)] if part in SPECIAL else None
            found += special or [letters.index(spelled.get(letter, letter)) for letter in part]
        return found

    ids, answer_ids = number(prompt + answer), number(answer)
    is_marked = template == MARKED_CHATML  # the line break after the turn is not the assistant's
    after = number(["\n"]) if is_marked else []

    train = make_chat(
        tmp_path,
        TURNS,
        tokenizer={"type": "huggingFace", "path": str(folder)},
        training__sequenceLength=len(ids + after) - 1,
    ).train

    assert train.tokens.tolist() == ids + after
    assert train.token_weights is not None
    assert train.token_weights.tolist() == [0] * len(number(prompt)) + [1] * len(answer_ids) + [0] * len(after)


def test_long_conversations_are_cut_and_counted(tmp_path: Path) -> None:
    long = say("user: Hi!", f"assistant: {'a' * 99}")

    made = make_chat(tmp_path, long, TURNS)

    assert len(made.train.tokens) == 81 + 70
    assert (
        "1 document of 2 longer than a sequence: only the first `training.sequenceLength` tokens are trained on."
        in made.report.warnings
    )


def test_conversations_without_answers_are_skipped_and_counted(tmp_path: Path) -> None:
    silent, late = say("user: Hi!"), say(f"user: {'a' * 99}", "assistant: Hello.")

    made = make_chat(tmp_path, silent, TURNS * 2, late)

    assert answers_of(made.train) == b"Hello.<|im_end|>\n"
    assert (
        "2 documents of 3 skipped: no token of an answer is in the first `training.sequenceLength` tokens."
        in made.report.warnings
    )


@pytest.mark.parametrize(("packing", "rows"), [("concat", 4), ("bestFit", 0)])
def test_sequences_without_a_token_of_an_answer_are_counted(tmp_path: Path, packing: str, rows: int) -> None:
    first = say("user: a", "assistant: Hello.", f"user: {'a' * 99}")
    last = say(f"user: {'a' * 99}", "assistant: Hello.")

    made = make_chat(
        tmp_path, *[first, last] * 6, training__sequenceLength=152, data__packing={"type": packing}, training__steps=1
    )

    weights = made.train.sequences(np.arange(made.train.num_sequences)).loss_weights
    assert int((weights.sum(axis=1) == 0).sum()) == rows
    found = [one for one in made.report.warnings if "without a token of an answer" in one]
    warning = (
        f"{rows} rows of {len(weights)} without a token of an answer, which take time and train nothing. Use "
        "`packing.type: bestFit`, or a greater `training.sequenceLength`."
    )
    assert found == ([warning] if rows else [])


def test_conversations_without_any_answer_fail(tmp_path: Path) -> None:
    error = fail(lambda: make_chat(tmp_path, say("user: Hi!"), say("user: Ho!")))

    assert (error.reason, error.path) == (FailureReason.DATA, "spec.data.train[0].path")
    assert "1 file gives 0 tokens" in str(error)
    assert "2 documents of 2 skipped: no token of an answer" in str(error)


def test_isolated_conversations_keep_their_weights(tmp_path: Path) -> None:
    made = make_chat(tmp_path, TURNS, TURNS, data__packing={"type": "bestFit"}, training__sequenceLength=160)

    (row,) = made.train.sequences(np.arange(1)).loss_weights
    assert int(row.sum()) == 2 * len("Hello.<|im_end|>\n")


def test_a_template_that_refuses_a_conversation_names_it(tmp_path: Path) -> None:
    grow(tmp_path, **{"gemma.jinja": GEMMA})
    template = {"chatTemplate": {"path": str(tmp_path / "gemma.jinja")}}

    error = fail(lambda: make_chat(tmp_path, TURNS, say("system: Be kind."), tokenizer=template))

    assert (error.reason, error.path) == (FailureReason.DATA, "spec.tokenizer.chatTemplate.path")
    assert str(error) == ("conversation 2 of a.jsonl: the template refuses the messages: System role not supported.")


def test_an_invalid_template_fails_before_the_text_is_read(tmp_path: Path) -> None:
    grow(tmp_path, **{"bad.jinja": "{% for %}"})
    template = {"chatTemplate": {"path": str(tmp_path / "bad.jinja")}}

    error = fail(lambda: make_chat(tmp_path, "no conversation", tokenizer=template))

    assert error.path == "spec.tokenizer.chatTemplate.path"
    assert str(error).startswith("is not a valid Jinja template: line 1: ")


def test_the_name_of_a_dataset_has_template_and_loss(tmp_path: Path) -> None:
    grow(tmp_path, **{"marked.jinja": MARKED_CHATML})
    changes: list[dict[str, Any]] = [
        {},
        {"objective": None},
        {"objective": {"type": "sft", "sft": {"lossOn": "all"}}},
        {"tokenizer": {"chatTemplate": {"path": str(tmp_path / "marked.jinja")}}},
    ]

    names = [make_chat(tmp_path, TURNS, TURNS, **one).train.dataset_hash for one in changes]

    assert len(set(names)) == len(changes)
    assert make_chat(tmp_path, TURNS, TURNS).train.dataset_hash == names[0]


def test_held_out_text_of_a_fine_tuning_has_a_loss_on_all_tokens(tmp_path: Path) -> None:
    grow(tmp_path / "held", **{"a.txt": "plain text " * 9})
    held_out = {"name": "held", "path": str(tmp_path / "held"), "everySteps": 1}

    made = make_chat(tmp_path, TURNS, TURNS, evaluation=[held_out])

    assert made.evaluations["held"].token_weights is None
    assert len(made.evaluations["held"].tokens) == 100


def test_held_out_conversations_have_a_loss_on_answers(tmp_path: Path) -> None:
    write_records(tmp_path / "held/a.jsonl", {"messages": TURNS * 2})
    held_out = {"name": "held", "format": "jsonl", "path": str(tmp_path / "held"), "messages": "messages"}

    made = make_chat(tmp_path, TURNS, TURNS, evaluation=[held_out | {"everySteps": 1}])

    assert answers_of(made.evaluations["held"]).startswith(b"Hello.<|im_end|>\n")
