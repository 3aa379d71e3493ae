"""SentencePiece models: ids, normalization, begin and end of documents, and files that are none."""

import functools
import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from tests.support.trainer.object_store import ObjectStore
from tests.support.trainer.texts import fail, grow, index_of, make_tokenizer
from tests.support.trainer.tiny import make_config, make_spec
from trainingjob_api.spec.tokenizer import Tokenizer
from trainingjob_trainer.data.chat.answer_weights import MarkedText
from trainingjob_trainer.data.model_files import keep_model_files
from trainingjob_trainer.data.tokenizers import DocumentEncoder
from trainingjob_trainer.huggingface.tokenizer_files import list_published_files

SENTENCES = [f"the cat sat on the mat and the dog on the log {number}" for number in range(300)]
VOCAB = 300


@functools.cache
def train(**options: Any) -> bytes:
    """Return a SentencePiece model of some sentences, with all bytes as pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        vocab_size=VOCAB,
        hard_vocab_limit=False,
        byte_fallback=True,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return model.getvalue()


def write(tmp_path: Path, content: bytes | None = None, **options: Any) -> Tokenizer:
    path = grow(tmp_path, **{"tokenizer.model": train() if content is None else content}) / "tokenizer.model"
    return Tokenizer(type="sentencePiece", path=str(path), **options)


def reference(text: str) -> list[int]:
    ids: list[int] = sentencepiece.SentencePieceProcessor(model_proto=train()).encode(text)
    return ids


def encode(encoder: DocumentEncoder, *texts: str) -> list[list[int]]:
    return [one.ids.tolist() for one in encoder.encode_documents((text.encode() for text in texts), "a.txt")]


TEXTS = ["the cat", "  two   blanks \n", "\ufb01ne \uff57ide", "déjà 🦙", "<s> and </s> are words", "x" * 5000]


def test_ids_are_those_of_the_library_with_the_end_of_the_model(tmp_path: Path) -> None:
    encoder = DocumentEncoder(write(tmp_path), VOCAB)

    assert encode(encoder, *TEXTS) == [[*reference(text), 2] for text in TEXTS]
    assert (encoder.begin, encoder.end) == (None, 2)


@pytest.mark.parametrize("text", ["the cat sat", "déjà 🦙", "x" * 50])
def test_pieces_have_the_bytes_of_the_text_and_a_space_before(tmp_path: Path, text: str) -> None:
    encoder = DocumentEncoder(write(tmp_path), VOCAB)
    numbers = encoder.count_token_bytes()

    assert numbers[encode(encoder, text)].sum() == len(f" {text}".encode())
    assert numbers[:3].tolist() == [0, 0, 0]


def test_the_spec_names_begin_and_end(tmp_path: Path) -> None:
    encoder = DocumentEncoder(write(tmp_path, begin_of_document="<s>", end_of_document="▁"), VOCAB)
    blank = sentencepiece.SentencePieceProcessor(model_proto=train()).piece_to_id("▁")

    assert encode(encoder, "the") == [[1, *reference("the"), blank]]
    assert encoder.encode_prompt("the") == [1, *reference("the")]


def test_a_model_without_an_end_has_none(tmp_path: Path) -> None:
    encoder = DocumentEncoder(write(tmp_path, train(eos_id=-1)), VOCAB)

    assert encoder.end is None


def test_ids_are_decoded_without_those_outside_of_the_model(tmp_path: Path) -> None:
    encoder = DocumentEncoder(write(tmp_path), 512)

    assert encoder.decode([1, *reference("the cat 🦙"), 2, 511]) == "the cat 🦙"


@pytest.mark.parametrize("text", ["the cat sat", "the 🦙 é sat", "  the\n cat"])
def test_answers_have_the_loss_of_all_their_bytes(tmp_path: Path, text: str) -> None:
    encoder = DocumentEncoder(write(tmp_path), VOCAB)
    middle = text.index(text.split()[1])
    span = (middle, middle + len(text.split()[1]))

    (whole,) = encoder.encode_marked([MarkedText(text, ((0, len(text)),), is_bounded=False)], "a")
    (part,) = encoder.encode_marked([MarkedText(text, (span,), is_bounded=False)], "a")

    assert whole.loss_weights.tolist() == [1] * len(whole.ids)
    covered = encoder.decode(whole.ids[part.loss_weights == 1].tolist())
    assert text.split()[1] in covered
    assert part.loss_weights.sum() < len(part.ids)


def test_text_is_tokenized_and_the_report_has_no_warning(tmp_path: Path) -> None:
    tokenizer = write(tmp_path)
    grow(tmp_path / "text", **{"a.txt": SENTENCES[0], "b.txt": SENTENCES[1]})
    used = {"type": "sentencePiece", "path": tokenizer.path}

    made = index_of(tmp_path, tokenizer=used, model__vocabSize=VOCAB, training__sequenceLength=2)

    assert made.train.tokens.tolist() == [*reference(SENTENCES[0]), 2, *reference(SENTENCES[1]), 2]
    assert not [one for one in made.report.warnings if "token" in one]


def test_another_model_is_another_tokenizer(tmp_path: Path) -> None:
    keys = [
        DocumentEncoder(write(tmp_path / name, train(**options)), VOCAB).tokenizer_key["sha256"]
        for name, options in (("a", {}), ("b", {"normalization_rule_name": "identity"}))
    ]

    assert keys[0] != keys[1]


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is no SentencePiece model: it is empty"),
    "text": (b"the cat", "is no SentencePiece model"),
    "cut off": (b"CUT", "is no SentencePiece model"),
    "tokenizer.json": (b'{"model": {}}', "is JSON: set `type: tokenizers` if it is a tokenizer.json"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", "run `git lfs pull`"),
    "gzip": (b"\x1f\x8b\x08\x00", "is gzip: decompress it"),
}


@pytest.mark.parametrize(("content", "words"), BAD.values(), ids=BAD)
def test_a_file_that_is_no_model_is_reported(tmp_path: Path, content: bytes, words: str) -> None:
    tokenizer = write(tmp_path, train()[:-3] if content == b"CUT" else content)

    error = fail(lambda: DocumentEncoder(tokenizer, VOCAB))

    assert words in str(error)
    assert (error.path, error.fatal) == ("spec.tokenizer.path", True)


def test_other_errors_name_their_fields(tmp_path: Path) -> None:
    few = fail(lambda: DocumentEncoder(write(tmp_path), 200))
    unknown = fail(lambda: DocumentEncoder(write(tmp_path, end_of_document="<end>"), VOCAB))
    missing = fail(lambda: DocumentEncoder(Tokenizer(type="sentencePiece", path=str(tmp_path)), VOCAB))
    path = make_tokenizer(tmp_path / "t.json", "a", "<unk>") and tmp_path / "tokenizer.model"
    mistaken = fail(lambda: DocumentEncoder(Tokenizer(type="tokenizers", path=str(path)), VOCAB))

    assert (few.path, "must be at least" in str(few)) == ("spec.model.vocabSize", True)
    assert (unknown.path, "Its special tokens: <s>, </s>" in str(unknown)) == ("spec.tokenizer.endOfDocument", True)
    assert f"It must be a tokenizer.model file that every host sees. Nearest legal value: {path}" in str(missing)
    assert "set `type: sentencePiece`" in str(mistaken)


def test_the_model_is_kept_and_published_as_tokenizer_model(tmp_path: Path) -> None:
    tokenizer, store = write(tmp_path), ObjectStore()
    spec = make_config(
        make_spec(
            tmp_path, tmp_path, tokenizer={"type": "sentencePiece", "path": tokenizer.path}, model__vocabSize=VOCAB
        )
    ).spec

    keep_model_files(store, spec)

    assert store.objects["tokenizer.model"] == train()
    assert json.loads(store.objects["model.json"])["tokenizer"]["type"] == "sentencePiece"
    assert list_published_files(tokenizer) == {"tokenizer.model": train()}
