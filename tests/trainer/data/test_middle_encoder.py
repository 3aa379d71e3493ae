"""Fill-in-the-middle: which documents are split, where, and the order of their tokens."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from tests.support.trainer.texts import fail, grow, index_of
from trainingjob_api.spec.data import FillInTheMiddle
from trainingjob_api.spec.tokenizer import Tokenizer
from trainingjob_trainer.data.middle_encoder import MiddleEncoder, split_document
from trainingjob_trainer.data.tokenizers import DocumentEncoder

TOKENS = {"prefix_token": "<pre>", "suffix_token": "<suf>", "middle_token": "<mid>"}
SPELLED = {"prefixToken": "<pre>", "suffixToken": "<suf>", "middleToken": "<mid>"}
TEXTS = [f"def function_{number}(x): return x + {number}  # ünïcode" for number in range(400)]
DOCUMENTS = [text.encode() for text in TEXTS]


def fill(**changes: Any) -> FillInTheMiddle:
    return FillInTheMiddle(**TOKENS | changes)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    """Return a tokenizer of bytes with the three tokens, whose ids are text again."""
    alphabet = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = tokenizers.Tokenizer(models.BPE(alphabet, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([*TOKENS.values(), "</s>", "<s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    path = str(tmp_path / "tokenizer.json")
    return Tokenizer(type="tokenizers", path=path, begin_of_document="<s>", end_of_document="</s>")


def decode(encoder: DocumentEncoder, documents: Iterable[Any]) -> list[str]:
    return [encoder.decode(document.ids.tolist()) for document in documents]


def test_the_parts_are_in_the_order_of_the_paper(tokenizer: Tokenizer) -> None:
    encoder = DocumentEncoder(tokenizer, 1000)
    for order, template in (
        ("psm", "<s><pre>{prefix}<suf>{suffix}<mid>{middle}</s>"),
        ("spm", "<s><pre><suf>{suffix}<mid>{prefix}{middle}</s>"),
    ):
        settings = fill(share=1.0, order=order)
        splits = [split_document(document, settings, 3) for document in DOCUMENTS]

        found = decode(encoder, MiddleEncoder(encoder, settings, 3).encode_documents(DOCUMENTS, "a file"))

        assert found == [template.format(**split._asdict()) for split in splits if split]


def test_documents_that_are_not_split_are_those_of_the_plain_encoder(tokenizer: Tokenizer) -> None:
    encoder, settings = DocumentEncoder(tokenizer, 1000), fill(share=0.3)
    plain = [one.ids.tolist() for one in DocumentEncoder(tokenizer, 1000).encode_documents(DOCUMENTS, "a file")]

    found = [one.ids.tolist() for one in MiddleEncoder(encoder, settings, 0).encode_documents(DOCUMENTS, "a file")]

    is_split = [split_document(document, settings, 0) is not None for document in DOCUMENTS]
    assert [ids != other for ids, other in zip(found, plain, strict=True)] == is_split
    assert 0.2 < np.mean(is_split) < 0.4
    assert encoder.quality.counts["documents"] == len(DOCUMENTS)


def test_both_orders_are_half_of_a_joint_training() -> None:
    splits = [split_document(document, fill(share=1.0), 0) for document in DOCUMENTS]

    assert 0.4 < np.mean([one.is_suffix_first for one in splits if one]) < 0.6


def test_cuts_are_anywhere_in_the_text() -> None:
    splits = [split_document(document, fill(share=1.0), 0) for document in DOCUMENTS]

    shares = [len(one.middle) / len(text) for one, text in zip(splits, TEXTS, strict=True) if one]
    assert np.mean(shares) == pytest.approx(1 / 3, abs=0.05)  # of two uniform cuts
    assert {bool(one.prefix) for one in splits if one} == {bool(one.suffix) for one in splits if one} == {True, False}


@given(st.text(min_size=1), st.integers(0, 100), st.sampled_from(["psm", "spm", "joint"]))
def test_no_character_is_lost_and_a_document_is_always_split_alike(text: str, seed: int, order: Any) -> None:
    document = text.encode(errors="ignore")
    split = split_document(document, fill(share=1.0, order=order), seed)

    assert split
    assert f"{split.prefix}{split.middle}{split.suffix}" == document.decode()
    assert split_document(document, fill(share=1.0, order=order), seed) == split


def test_the_split_stays_what_it_was() -> None:
    # A change here gives running jobs other documents than their checkpoints say.
    assert split_document(b"the cat sat on the mat", fill(share=1.0), 0) == ("t", "he cat sat on th", "e mat", True)


def test_another_seed_splits_elsewhere() -> None:
    first, second = ([split_document(document, fill(), seed) for document in DOCUMENTS] for seed in (0, 1))

    assert first != second


@pytest.mark.parametrize("kind", ["prefix", "suffix", "middle"])
def test_a_token_that_the_tokenizer_lacks_is_named(tokenizer: Tokenizer, kind: str) -> None:
    settings = fill(**{f"{kind}_token": "<|fim|>"})

    error = fail(lambda: MiddleEncoder(DocumentEncoder(tokenizer, 1000), settings, 0))

    assert (error.path, error.value) == (f"spec.data.fillInTheMiddle.{kind}Token", "<|fim|>")
    assert str(error).startswith("is not a token of the tokenizer. Its special tokens: <pre>, <suf>, <mid>")


def test_bytes_have_no_tokens_for_it() -> None:
    error = fail(lambda: MiddleEncoder(DocumentEncoder(Tokenizer(), 1000), fill(), 0))

    assert (error.path, error.value) == ("spec.data.fillInTheMiddle.prefixToken", "<pre>")


def test_only_training_text_is_changed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    grow(tmp_path / "text", **{f"{number}.txt": document for number, document in enumerate(DOCUMENTS[:20])})
    changes: dict[str, Any] = {
        "tokenizer": tokenizer.model_dump(by_alias=True, exclude_none=True),
        "model__vocabSize": 1000,
        "evaluation": [{"name": "held", "path": str(tmp_path / "text"), "everySteps": 5}],
    }
    plain = index_of(tmp_path, **changes)
    filled, again, other = (
        index_of(tmp_path, **changes, data__fillInTheMiddle={**SPELLED, "share": 1}, training__seed=seed)
        for seed in (0, 0, 1)
    )

    assert filled.train.num_tokens == plain.train.num_tokens + 3 * 20
    assert filled.evaluations["held"].dataset_hash == plain.evaluations["held"].dataset_hash
    assert filled.train.dataset_hash == again.train.dataset_hash
    assert len({one.train.dataset_hash for one in (plain, filled, other)}) == 3
