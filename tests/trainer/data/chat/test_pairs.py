"""Datasets of pairs of answers: their tokens, their loss weights, and what is cut, skipped or rejected."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.trainer.chat import CHATML, MARKED_CHATML, say, write_records
from tests.support.trainer.texts import fail, grow, index_of
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.data.mixture import Mixture
from trainingjob_trainer.data.token_cache import JobDatasets
from trainingjob_trainer.data.token_dataset import Sequences

NAMES = {"chosen": "good", "rejected": "bad"}
TEXTS = {"q": "2+2=", "good": "4", "bad": "five"}
LENGTH = 12


def make_pairs(folder: Path, *records: Any, names: dict[str, str] | None = None, **changes: Any) -> JobDatasets:
    """Return the datasets of a job on pairs."""
    if records:
        write_records(folder / "text/a.jsonl", *records)
    source = {"name": "pairs", "format": "jsonl", "path": str(folder / "text")} | (names or NAMES)
    values = {"objective": {"type": "dpo"}, "data__train": [source], "training__sequenceLength": LENGTH}
    return index_of(folder, **values | changes)


def with_template(folder: Path, template: str = CHATML) -> dict[str, Any]:
    """Return changes of a spec: a template, and sequences that hold conversations."""
    grow(folder, **{"chat.jinja": template})
    return {"tokenizer": {"chatTemplate": {"path": str(folder / "chat.jinja")}}, "training__sequenceLength": 256}


def answers_of(sequences: Sequences, pair: int = 0) -> list[bytes]:
    """Return the bytes with a loss of both answers of a pair."""
    rows = zip(sequences.targets[pair], sequences.loss_weights[pair], strict=True)
    return [bytes(targets[(weights > 0) & (targets < 256)].tolist()) for targets, weights in rows]


def test_a_pair_is_two_sequences_with_one_answer_each(tmp_path: Path) -> None:
    made = make_pairs(tmp_path, TEXTS, TEXTS | {"bad": "22"}, names=NAMES | {"prompt": "q"})

    (row,) = made.train.sequences(np.arange(1)).tokens
    sequences = made.train.sequences(np.array([1, 0]))
    assert made.train.num_sequences == 2
    assert not made.train.is_isolated
    assert row.tolist() == [[*b"2+2=4", *[0] * 7], [*b"2+2=five", *[0] * 4]]
    assert sequences.targets[0].tolist() == [[*b"+2=4", 256, *[0] * 7], [*b"+2=22", 256, *[0] * 6]]
    assert sequences.loss_weights[1].tolist() == [[0, 0, 0, 1, 1, *[0] * 7], [0, 0, 0, 1, 1, 1, 1, 1, *[0] * 4]]
    assert (sequences.segment_ids, sequences.positions) == (None, None)
    assert [source.rows for source in made.report.sources] == [2]


def test_answers_need_no_prompt(tmp_path: Path) -> None:
    made = make_pairs(tmp_path, {"good": "yes", "bad": "no"})

    (weights,) = made.train.sequences(np.arange(1)).loss_weights
    assert weights[:, :4].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]


CONVERSATION = ["user: Hi!", "assistant: Hello.", "user: 2+2?"]
FORMS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "two whole conversations": (
        {"good": say(*CONVERSATION, "assistant: 4"), "bad": say(*CONVERSATION, "assistant: 42")},
        NAMES,
    ),
    "a prompt and two ends": (
        {"q": say(*CONVERSATION), "good": say("assistant: 4"), "bad": say("assistant: 42")},
        NAMES | {"prompt": "q"},
    ),
}


@pytest.mark.parametrize(("template", "end"), [(CHATML, b"<|im_end|>\n"), (MARKED_CHATML, b"<|im_end|>")])
@pytest.mark.parametrize(("record", "names"), FORMS.values(), ids=FORMS)
def test_turns_that_both_conversations_share_are_no_answers(
    tmp_path: Path, record: dict[str, Any], names: dict[str, str], template: str, end: bytes
) -> None:
    made = make_pairs(tmp_path, record, names=names, **with_template(tmp_path, template))

    assert answers_of(made.train.sequences(np.arange(1))) == [b"4" + end, b"42" + end]


def test_an_answer_that_the_other_one_continues_has_a_loss(tmp_path: Path) -> None:
    """The generation tag leaves out what ends a turn, so that the shorter answer is a prefix of the other."""
    template = MARKED_CHATML.replace("{{ message.content + '<|im_end|>' }}{% endgen", "{{ message.content }}{% endgen")

    made = make_pairs(tmp_path, FORMS["two whole conversations"][0], **with_template(tmp_path, template))

    assert answers_of(made.train.sequences(np.arange(1))) == [b"4", b"42"]


def test_tables_hold_texts_or_conversations(tmp_path: Path) -> None:
    texts, chats = tmp_path / "texts", tmp_path / "chats"
    for folder, record in ((texts, TEXTS), (chats, FORMS["a prompt and two ends"][0])):
        (folder / "text").mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([record]), folder / "text/a.parquet")
    names = NAMES | {"prompt": "q", "format": "parquet"}

    of_texts = make_pairs(texts, names=names).train.sequences(np.arange(1))
    of_chats = make_pairs(chats, names=names, **with_template(chats)).train.sequences(np.arange(1))

    assert of_texts.tokens[0, 0, :5].tolist() == [*b"2+2=4"]
    assert answers_of(of_chats) == [b"4<|im_end|>\n", b"42<|im_end|>\n"]


def test_a_table_of_numbers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    pq.write_table(pa.Table.from_pylist([{"good": 1, "bad": "x"}]), tmp_path / "text/a.parquet")

    error = fail(lambda: make_pairs(tmp_path, names=NAMES | {"format": "parquet"}))

    assert error.path == "spec.data.train[0].chosen"
    assert "`good` must hold strings, or lists of messages, but holds int64" in str(error)


def test_pairs_are_skipped_as_a_whole_and_counted(tmp_path: Path) -> None:
    late = TEXTS | {"q": "a" * 2 * LENGTH}
    same = {"q": say("user: a"), "good": say("assistant: b"), "bad": say("assistant: b")}

    made = make_pairs(tmp_path / "a", TEXTS, late, names=NAMES | {"prompt": "q"})
    equal = make_pairs(
        tmp_path / "b",
        same,
        FORMS["a prompt and two ends"][0],
        names=NAMES | {"prompt": "q"},
        **with_template(tmp_path / "b"),
    )

    assert made.train.num_sequences == equal.train.num_sequences == 1
    for report in (made.report, equal.report):
        assert (
            "1 pair of 2 skipped: an answer has no token in the first `training.sequenceLength` tokens, or both "
            "answers are equal."
        ) in report.warnings
    assert (
        "1 pair of 2 longer than a sequence: only the first `training.sequenceLength` tokens are trained on."
        in made.report.warnings
    )


EQUAL = {"two equal texts": ("q", "4", "4"), "texts that differ after the end": ("q" * 6, "a" * 7 + "b", "a" * 7 + "c")}


@pytest.mark.parametrize(("prompt", "good", "bad"), EQUAL.values(), ids=EQUAL)
def test_a_pair_of_equal_sequences_is_skipped(tmp_path: Path, prompt: str, good: str, bad: str) -> None:
    equal = {"q": prompt, "good": good, "bad": bad}

    made = make_pairs(tmp_path, equal, TEXTS, names=NAMES | {"prompt": "q"})

    assert made.train.num_sequences == 1
    assert answers_of(made.train.sequences(np.arange(1))) == [b"4", b"five"]
    assert any("1 pair of 2 skipped" in warning for warning in made.report.warnings)


def test_a_job_without_any_pair_fails(tmp_path: Path) -> None:
    error = fail(lambda: make_pairs(tmp_path, TEXTS | {"q": "a" * 99}, names=NAMES | {"prompt": "q"}))

    assert (error.reason, error.path) == (FailureReason.DATA, "spec.data.train[0].path")
    assert "1 pair of 1 skipped" in str(error)


KINDS = "The values of a pair are all strings, or all lists of messages."
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a string and a conversation": (
        {"good": "yes", "bad": say("assistant: no")},
        f"line 1: `bad` must be a string, but is a list. {KINDS}",
    ),
    "a conversation and a string": (
        {"good": say("assistant: yes"), "bad": "no"},
        "line 1: `bad` must be a list of messages, as `good` is, but is a string.",
    ),
    "a number": (
        {"good": 1, "bad": "no"},
        f"line 1: `good` must be a string, but is a number. {KINDS}",
    ),
    "no messages": ({"good": [], "bad": []}, "line 1: `good` must have a message or more, but is empty."),
    "one answer": ({"good": "yes"}, "line 1 has no field `bad`."),
}


@pytest.mark.parametrize(("record", "want"), BROKEN.values(), ids=BROKEN)
def test_broken_records_are_refused(tmp_path: Path, record: dict[str, Any], want: str) -> None:
    error = fail(lambda: make_pairs(tmp_path, record))

    assert want in str(error)


def test_conversations_require_a_template(tmp_path: Path) -> None:
    error = fail(lambda: make_pairs(tmp_path, {"good": say("assistant: a"), "bad": say("assistant: b")}))

    assert error.path == "spec.tokenizer.chatTemplate"
    assert str(error).startswith("must be set: pair 1 of a.jsonl holds conversations. Set `path` to a Jinja file")


def test_a_folder_without_a_template_is_enough_for_texts(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    vocab = {letter: place for place, letter in enumerate(["[UNK]", "yes", "no"])}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    file = {"version": "1.0", "model": model, "pre_tokenizer": {"type": "Whitespace"}}
    tokenizer = {"type": "huggingFace", "path": str(folder)}
    grow(folder, **{"tokenizer.json": json.dumps(file)})

    texts = make_pairs(tmp_path / "a", {"good": "yes no", "bad": "no yes"}, tokenizer=tokenizer)
    chats = {"good": say("assistant: yes"), "bad": say("assistant: no")}
    error = fail(lambda: make_pairs(tmp_path / "b", chats, tokenizer=tokenizer))

    assert texts.train.num_sequences == 1
    assert error.path == "spec.tokenizer.path"
    assert "has no chat template" in str(error)


def test_a_mixture_of_pairs_has_pairs(tmp_path: Path) -> None:
    sources = []
    for name, answer in (("a", "1"), ("b", "22")):
        write_records(tmp_path / f"text/{name}/a.jsonl", TEXTS | {"good": answer})
        path = str(tmp_path / "text" / name)
        sources.append({"name": name, "format": "jsonl", "path": path, "weight": 1, "prompt": "q"} | NAMES)

    train = make_pairs(tmp_path, data__train=sources).train

    assert isinstance(train, Mixture)
    assert train.has_pairs
    assert [answers_of(train.sequences(np.array([1, 0])), pair) for pair in (0, 1)] == [
        [b"22", b"five"],
        [b"1", b"five"],
    ]


def test_datasets_of_pairs_and_of_completions_have_different_names(tmp_path: Path) -> None:
    record = TEXTS | {"good": "4"}

    pairs = make_pairs(tmp_path, record, names=NAMES | {"prompt": "q"}).train
    completions = make_pairs(
        tmp_path,
        record,
        names={"prompt": "q", "completion": "good"},
        objective={"type": "sft"},
        training__sequenceLength=4,
    ).train

    assert pairs.dataset_hash != completions.dataset_hash
