"""Tokenizer files: their settings neither lose nor add text, and their errors name the field."""

import codecs
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from tests.support.trainer.texts import fail, grow, index_of, make_tokenizer, use
from tests.support.trainer.tiny import make_config, make_spec
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.tokenizer import Tokenizer
from trainingjob_trainer.data import token_cache
from trainingjob_trainer.data.tokenizers import DocumentEncoder

WORDS = "the cat sat on the mat, and the dog on the log. "
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def save_with(tmp_path: Path, *switches: str) -> Path:
    """Save a tokenizer with settings that its training left on."""
    path = tmp_path / f"{'-'.join(switches) or 'plain'}.json"
    tokenizer = make_tokenizer(path, "the", "cat", "sat", "<unk>", "<end>")
    if "truncation" in switches:
        tokenizer.enable_truncation(max_length=3)
    if "stride" in switches:
        tokenizer.enable_truncation(max_length=3, stride=1)
    if "padding" in switches:
        tokenizer.enable_padding(length=64, pad_id=4, pad_token="<end>")
    if "multiple" in switches:
        tokenizer.enable_padding(pad_to_multiple_of=8, pad_id=4, pad_token="<end>")
    if "template" in switches:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="<end> $A <end>", special_tokens=[("<end>", 4)]
        )
    tokenizer.save(str(path))
    return path


SWITCHES = [
    ("truncation",),
    ("padding",),
    ("truncation", "padding"),
    ("multiple",),
    ("stride",),
    ("template",),
    ("truncation", "template"),
]


@pytest.mark.parametrize("switches", SWITCHES, ids="-".join)
def test_no_setting_of_a_tokenizer_file_cuts_or_adds_tokens(tmp_path: Path, switches: tuple[str, ...]) -> None:
    grow(tmp_path / "text", **{"a.txt": "the cat sat the cat sat the cat", "b.txt": "cat"})
    plain, other = save_with(tmp_path), save_with(tmp_path, *switches)

    want = index_of(tmp_path, **use(plain)).train
    got = index_of(tmp_path, **use(other)).train

    assert got.tokens.tolist() == want.tokens.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 1]


def test_dropout_of_a_tokenizer_file_is_off(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.txt": "abababababababab"})
    model = models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=1.0)
    tokenizers.Tokenizer(model).save(str(tmp_path / "t.json"))

    assert index_of(tmp_path, **use(tmp_path / "t.json")).train.tokens.tolist() == [2] * 8


def test_an_index_of_cut_documents_is_not_taken_for_that_of_whole_ones(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.txt": "the cat sat"})
    plain, cut = save_with(tmp_path), save_with(tmp_path, "truncation")
    before = {"type": "tokenizers", "endOfDocument": None}
    identities = [DocumentEncoder(parse(use(path)), 272).tokenizer_key for path in (plain, cut)]

    assert identities[0] == before | {"sha256": identities[0]["sha256"]}
    assert identities[1] == before | {"sha256": identities[1]["sha256"], "whole": True}


def parse(changes: dict[str, Any]) -> Any:
    return make_config(make_spec(Path("/a"), Path("/b"), **changes)).spec.tokenizer


def test_the_names_of_indexes_stay_what_they_were(tmp_path: Path) -> None:
    # A change here lets running jobs tokenise their text again, or refuse their checkpoints.
    grow(tmp_path / "text", **{"a.txt": "text enough for one row", "x/b.txt": "", "z.md": "m"})

    made = index_of(tmp_path)

    assert made.train.dataset_hash == "8d54c235571af911204f5add6b5ed2ff165affad3095f293e4ee93d261bb6705"
    pointers = sorted(path.name for path in (tmp_path / "checkpoints/data").glob("*-*.json"))
    spec = make_config(make_spec(Path("/run"), Path("/text"))).spec
    assert token_cache._hash_sections(spec) == "d6880c86614ee432"
    assert [name.count(".account") for name in pointers] == [1, 0]


BROKEN: dict[str, tuple[str | bytes, str]] = {
    "a Git LFS pointer": (LFS, "is a Git LFS pointer, not the text: run `git lfs pull`."),
    "nothing": ("", "is empty."),
    "another JSON": ("[1]", "is not a tokenizer.json"),
    "no JSON": ("{", "is not a tokenizer.json"),
    "a config": ('{"tokenizer_class": "LlamaTokenizer"}', "is a tokenizer_config.json, not a tokenizer.json"),
    "a vocabulary": ('{"a": 0, "b": 1}', "is a vocab.json, not a tokenizer.json"),
    "SentencePiece": (b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02\xc3", "perhaps a SentencePiece model"),
    "UTF-16": ('{"a": 0}'.encode("utf-16"), "is UTF-16 text: convert it"),
    "gzip": (gzip.compress(b"{}"), "is gzip: decompress it"),
}


@pytest.mark.parametrize(("content", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_file_that_is_no_tokenizer_is_rejected_with_its_format(
    tmp_path: Path, content: str | bytes, words: str
) -> None:
    grow(tmp_path, **{"text/a.txt": WORDS, "t.json": content})

    error = fail(lambda: index_of(tmp_path, **use(tmp_path / "t.json")))

    assert (error.reason, error.path, error.fatal) == (FailureReason.DATA, "spec.tokenizer.path", True)
    assert words in str(error)


def test_a_tokenizer_file_may_begin_with_a_mark(tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "t.json", "a", "<unk>")
    marked = codecs.BOM_UTF8 + (tmp_path / "t.json").read_bytes()
    grow(tmp_path, **{"text/a.txt": "a a a", "marked.json": marked})

    assert index_of(tmp_path, **use(tmp_path / "marked.json")).train.tokens.tolist() == [0, 0, 0]


def test_folder_suggests_the_file_in_it(tmp_path: Path) -> None:
    grow(tmp_path, **{"text/a.txt": WORDS, "model/tokenizer.json": "{}"})

    error = fail(lambda: index_of(tmp_path, **use(tmp_path / "model")))

    assert str(error).endswith(f"Nearest legal value: {tmp_path}/model/tokenizer.json.")


def test_tokenizer_without_tokens_is_rejected(tmp_path: Path) -> None:
    tokenizers.Tokenizer(models.BPE()).save(str(tmp_path / "t.json"))
    grow(tmp_path / "text", **{"a.txt": WORDS})

    error = fail(lambda: index_of(tmp_path, **use(tmp_path / "t.json")))

    assert (error.path, str(error)) == (
        "spec.tokenizer.path",
        "has no tokens. Save the tokenizer again after it was trained.",
    )


UNKNOWNS: dict[str, tuple[Any, str]] = {
    "words": (models.WordLevel({"the": 0, "cat": 1}, unk_token="[UNK]"), "Missing [UNK] token"),
    "pieces of words": (models.WordPiece({"the": 0, "cat": 1}, unk_token="[UNK]"), "Missing [UNK] token"),
    "pairs": (models.BPE({"t": 0}, [], unk_token="<unk>"), "<unk>"),
    "single letters": (models.Unigram([("t", 0.0), ("h", -1.0)], None, False), "unk"),
}


@pytest.mark.parametrize(("model", "words"), UNKNOWNS.values(), ids=UNKNOWNS.keys())
def test_document_that_cannot_be_encoded_is_named(tmp_path: Path, model: Any, words: str) -> None:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "t.json"))
    grow(tmp_path / "text", **{"x/b.txt": "the dog barks"})

    error = fail(lambda: index_of(tmp_path, **use(tmp_path / "t.json")))

    assert (error.reason, error.path, error.fatal) == (FailureReason.DATA, "spec.tokenizer.path", True)
    assert "cannot encode x/b.txt: " in str(error)
    assert words in str(error)


def change_file(tmp_path: Path, **changes: Any) -> Tokenizer:
    """Return a tokenizer in a folder, whose tokenizer.json has other parts."""
    path = tmp_path / "tokenizer.json"
    make_tokenizer(path, "the", "cat", "<unk>", "a")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "the", "eos_token": "cat"}')
    return Tokenizer(type="huggingFace", path=str(tmp_path))


PREFIX = {"type": "TemplateProcessing", "pair": [], "special_tokens": {}}
PANICS: dict[str, tuple[dict[str, Any], str]] = {
    "a damaged normalizer": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        "is not a tokenizer.json of the `tokenizers` library: ",
    ),
    "a template without its token": (
        {"post_processor": PREFIX | {"single": [{"SpecialToken": {"id": "<q>", "type_id": 0}}]}},
        "cannot encode an empty text: ",
    ),
    "a decoder that cuts too much": (
        {"decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 999}},
        "cannot decode its tokens: ",
    ),
}


@pytest.mark.parametrize(("changes", "words"), PANICS.values(), ids=PANICS)
def test_a_file_at_which_the_library_panics_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    tokenizer = change_file(tmp_path, **changes)

    error = fail(lambda: DocumentEncoder(tokenizer, 272).count_token_bytes())

    assert (error.reason, error.path, error.fatal) == (FailureReason.DATA, "spec.tokenizer.path", True)
    assert str(error).startswith(words)


def test_ids_that_cannot_be_decoded_are_an_error(tmp_path: Path) -> None:
    decoder = {"type": "Strip", "content": "a", "start": 0, "stop": 999}
    encoder = DocumentEncoder(change_file(tmp_path, decoder=decoder), 272)

    assert str(fail(lambda: encoder.decode([3]))).startswith("cannot decode ids: ")


def test_a_prompt_has_no_end_and_its_text_comes_back(tmp_path: Path) -> None:
    path = save_with(tmp_path, "template", "truncation")
    vocab = {"the": 0, "cat": 1, "sat": 2}
    words = DocumentEncoder(Tokenizer(type="tokenizers", path=str(path), end_of_document="<end>"), 272)
    plain = DocumentEncoder(Tokenizer(), 272)

    assert words.encode_prompt("the cat sat the") == [vocab[word] for word in ("the", "cat", "sat", "the")]
    assert (words.end, words.decode([0, 1, 4])) == (4, "the cat <end>")
    assert plain.encode_prompt("\u00e9") == [0xC3, 0xA9]
    assert plain.decode([0xC3, 0xA9, 65, 0xC3, 256, 270]) == "\u00e9A\ufffd"
    assert plain.end == 256


def test_batches_change_neither_ids_nor_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_with(tmp_path, "template", "truncation")
    encoder = DocumentEncoder(Tokenizer(type="tokenizers", path=str(path), end_of_document="<end>"), 272)
    documents = [b"the cat", b"sat", b"", b"cat sat the cat", b"the"]
    alone = [one.ids.tolist() for document in documents for one in encoder.encode_documents([document], "a.txt")]

    monkeypatch.setattr("trainingjob_trainer.data.tokenizers.MAX_BATCH_DOCUMENTS", 2)

    assert [one.ids.tolist() for one in encoder.encode_documents(documents, "a.txt")] == alone
    assert alone[:2] == [[0, 1, 4], [2, 4]]


@pytest.mark.parametrize(
    ("limit", "value", "want"),
    [("MAX_BATCH_DOCUMENTS", 2, 3), ("MAX_BATCH_BYTES", 10, 4), ("MAX_BATCH_BYTES", 1, 2)],
    ids=["documents", "bytes", "a document above the limit"],
)
def test_a_batch_reads_no_further_than_its_limit(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int, want: int
) -> None:
    monkeypatch.setattr(f"trainingjob_trainer.data.tokenizers.{limit}", value)
    waiting = iter([b"cat"] * 9)

    next(DocumentEncoder(Tokenizer(), 272).encode_documents(waiting, "a.txt"))

    assert 9 - len(list(waiting)) == want
