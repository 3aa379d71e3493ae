"""Files that are no text, tokenizers that lose or add some, and what is reported of both."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tests.trainer.feeding.test_folders import fail
from tests.trainer.feeding.texts import find, grow, index_of, make_tokenizer, use
from tests.trainer.tiny import make_config, make_spec
from trainingjob_api.protocol import FailureReason
from trainingjob_api.reading import DataReport
from trainingjob_trainer.feeding import index as indexes
from trainingjob_trainer.feeding.account import MAX_BYTES, Text, hash_document, load_texts, make_report
from trainingjob_trainer.feeding.index import prepare

WORDS = "the cat sat on the mat, and the dog on the log. "
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def packed() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", WORDS)
    return file.getvalue()


def saved() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(9))
    return file.getvalue()


KINDS: dict[str, tuple[bytes, str]] = {
    "a Git LFS pointer": (LFS, "is a Git LFS pointer, not the text: run `git lfs pull`."),
    "an old Git LFS pointer": (LFS.replace(b"git-lfs.github", b"hawser.github"), "run `git lfs pull`"),
    "a git-annex pointer": (b"/annex/objects/SHA256E-s12--ab.txt\n", "run `git annex get`"),
    "a Xet pointer": (b"# xet version 0\nfilesize = 12\n", "is a Xet pointer"),
    "gzip": (gzip.compress(WORDS.encode()), "It is gzip: decompress it"),
    "zstd": (b"\x28\xb5\x2f\xfd\x24\x05\x29\x00\x00hello", "It is zstd: decompress it"),
    "bzip2": (bz2.compress(WORDS.encode()), "It is bzip2: decompress it"),
    "xz": (lzma.compress(WORDS.encode()), "It is xz: decompress it"),
    "LZMA": (lzma.compress(WORDS.encode(), lzma.FORMAT_ALONE), "It is LZMA: decompress it"),
    "LZ4": (b"\x04\x22\x4d\x18\x64\x40\xa7", "It is LZ4: decompress it"),
    "ZIP": (packed(), "It is a ZIP archive"),
    "tar": (b"a.txt".ljust(257, b"\0") + b"ustar\x0000" + WORDS.encode(), "It is a tar archive"),
    "Parquet": (b"PAR1\x15\x04\x15\x00\x15PAR1", "It is Parquet: convert it to UTF-8 text"),
    "Arrow": (b"ARROW1\x00\x00\xff\xff\xff\xff", "It is Arrow: convert"),
    "an Arrow stream": (b"\xff\xff\xff\xff\x10\x00", "It is an Arrow stream: convert"),
    "NumPy": (saved(), "It is NumPy: convert"),
    "HDF5": (b"\x89HDF\r\n\x1a\n\x00", "It is HDF5: convert"),
    "SQLite": (b"SQLite format 3\x00\x10\x00", "It is SQLite: convert"),
    "a pickle": (b"\x80\x04\x95\x0c\x00\x00", "It is a Python pickle"),
    "a PDF": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "It is PDF: convert"),
    "an image": (b"\x89PNG\r\n\x1a\n\x00", "It is a PNG image"),
    "UTF-16": (WORDS.encode("utf-16"), "It is UTF-16 text: convert it with `iconv -f UTF-16 -t UTF-8`"),
    "UTF-16, big end first": (codecs.BOM_UTF16_BE + WORDS.encode("utf-16-be"), "It is UTF-16 text"),
    "UTF-32": (WORDS.encode("utf-32"), "It is UTF-32 text"),
    "UTF-16 without a mark": (
        WORDS.encode("utf-16-le"),
        "byte 1 is NUL. It is UTF-16LE text without a byte order mark",
    ),
    "the same, big end first": (WORDS.encode("utf-16-be"), "byte 0 is NUL. It is UTF-16BE text"),
    "UTF-32 without a mark": (WORDS.encode("utf-32-le"), "It is UTF-32LE text without"),
    "another encoding": ("déjà vu".encode("latin-1"), "byte 1 is 0xe9 (invalid continuation byte). Repair the file"),
    "a NUL in text": (b"the cat\0 sat", "byte 7 is NUL. Repair the file, or leave it out with `exclude`"),
}


@pytest.mark.parametrize(("content", "words"), KINDS.values(), ids=KINDS.keys())
def test_what_is_not_text_is_refused_by_its_kind(tmp_path: Path, content: bytes, words: str) -> None:
    grow(tmp_path / "text", **{"a.txt": WORDS, "b.txt": content})

    error = fail(lambda: index_of(tmp_path))

    assert (error.reason, error.path, error.fatal) == (FailureReason.DATA, "spec.data.train[0].path", True)
    assert "b.txt" in str(error)
    assert words in str(error)


TEXTS = {
    "of a pointer": b"A pointer begins with\n" + LFS,
    "a long one that begins as a pointer": LFS + WORDS.encode() * 99,
    "that begins as a format": b"BZh and ORC and PAR1 are only words, " * 9,
    "of any script": "привет 你好 🦙".encode(),
}


@pytest.mark.parametrize("content", TEXTS.values(), ids=TEXTS.keys())
def test_text_is_text(tmp_path: Path, content: bytes) -> None:
    grow(tmp_path, **{"a.txt": content})

    assert find(tmp_path).documents[0].read() == content


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.txt": codecs.BOM_UTF8 + b"abc", "b.txt": codecs.BOM_UTF8})

    made = index_of(tmp_path, training__sequenceLength=2)

    assert made.train.tokens.tolist() == [97, 98, 99, 256]
    assert [(one.reason, one.count) for one in made.report.sources[0].skipped] == [("empty", 1)]


def test_a_file_that_changes_while_it_is_read_is_refused_and_tried_again(tmp_path: Path) -> None:
    grow(tmp_path, **{"a.txt": "before"})
    document = find(tmp_path).documents[0]
    hashed = hash_document(document)
    hashed.check(document, b"before")

    error = fail(lambda: hashed.check(document, b"behind"))

    assert (error.fatal, error.path) == (False, "spec.data.train[0].path")
    assert "a.txt changed while it was read" in str(error)


# Tokenizers


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
    identities = [indexes.Encoder(parse(use(path)), 272).identity for path in (plain, cut)]

    assert identities[0] == before | {"sha256": identities[0]["sha256"]}
    assert identities[1] == before | {"sha256": identities[1]["sha256"], "whole": True}


def parse(changes: dict[str, Any]) -> Any:
    return make_config(make_spec(Path("/a"), Path("/b"), **changes)).spec.tokenizer


def test_the_names_of_indexes_stay_what_they_were(tmp_path: Path) -> None:
    # A change here lets running jobs tokenise their text again, or refuse their checkpoints.
    grow(tmp_path / "text", **{"a.txt": "text enough for one row", "x/b.txt": "", "z.md": "m"})

    made = index_of(tmp_path)

    assert made.train.identity == "8d54c235571af911204f5add6b5ed2ff165affad3095f293e4ee93d261bb6705"
    pointers = sorted(path.name for path in (tmp_path / "checkpoints/data").glob("*-*.json"))
    spec = make_config(make_spec(Path("/run"), Path("/text"))).spec
    assert indexes._hash_sections(spec) == "7284e287f14897f7"
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
def test_a_file_that_is_no_tokenizer_is_refused_by_its_kind(tmp_path: Path, content: str | bytes, words: str) -> None:
    grow(tmp_path, **{"text/a.txt": WORDS, "t.json": content})

    error = fail(lambda: index_of(tmp_path, **use(tmp_path / "t.json")))

    assert (error.reason, error.path, error.fatal) == (FailureReason.DATA, "spec.tokenizer.path", True)
    assert words in str(error)


def test_a_tokenizer_file_may_begin_with_a_mark(tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "t.json", "a", "<unk>")
    marked = codecs.BOM_UTF8 + (tmp_path / "t.json").read_bytes()
    grow(tmp_path, **{"text/a.txt": "a a a", "marked.json": marked})

    assert index_of(tmp_path, **use(tmp_path / "marked.json")).train.tokens.tolist() == [0, 0, 0]


def test_a_folder_is_told_the_file_in_it(tmp_path: Path) -> None:
    grow(tmp_path, **{"text/a.txt": WORDS, "model/tokenizer.json": "{}"})

    error = fail(lambda: index_of(tmp_path, **use(tmp_path / "model")))

    assert str(error).endswith(f"Nearest legal value: {tmp_path}/model/tokenizer.json.")


def test_a_tokenizer_without_tokens_is_refused(tmp_path: Path) -> None:
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
def test_a_document_that_cannot_be_encoded_is_told(tmp_path: Path, model: Any, words: str) -> None:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "t.json"))
    grow(tmp_path / "text", **{"x/b.txt": "the dog barks"})

    error = fail(lambda: index_of(tmp_path, **use(tmp_path / "t.json")))

    assert (error.reason, error.path, error.fatal) == (FailureReason.DATA, "spec.tokenizer.path", True)
    assert "cannot encode x/b.txt: " in str(error)
    assert words in str(error)


# What is reported


def warn(tmp_path: Path, files: dict[str, str], tokenizer: Path | None = None, **changes: Any) -> str:
    grow(tmp_path / "text", **files)
    made = index_of(tmp_path, **(use(tokenizer) if tokenizer else {}) | changes)
    return "\n".join(made.report.warnings)


def test_open_documents_are_told_with_the_tokens_that_may_end_them(tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "t.json", "a", "<unk>", "</s>", "<|endoftext|>")

    words = warn(tmp_path, {"a.txt": "a a a a", "b.txt": "a a a"}, tmp_path / "t.json")

    assert "2 documents follow each other without a separator" in words
    assert "the tokenizer has <|endoftext|>, </s>." in words


def test_one_document_needs_no_end(tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "t.json", "a", "<unk>")

    assert "separator" not in warn(tmp_path, {"a.txt": "a a a a"}, tmp_path / "t.json")


def test_unknown_tokens_are_counted(tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "t.json", "a", "<unk>")

    words = warn(tmp_path, {"a.txt": "a b a c a"}, tmp_path / "t.json")

    assert "40.0% of the tokens are unknown to the tokenizer (2 of 5)" in words


def test_unknown_tokens_of_a_unigram_model_are_counted(tmp_path: Path) -> None:
    model = models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0, False)
    tokenizers.Tokenizer(model).save(str(tmp_path / "t.json"))

    assert "unknown to the tokenizer" in warn(tmp_path, {"a.txt": "abacad"}, tmp_path / "t.json")


def test_characters_that_no_token_covers_are_counted(tmp_path: Path) -> None:
    tokenizers.Tokenizer(models.BPE({"a": 0}, [])).save(str(tmp_path / "t.json"))

    words = warn(tmp_path, {"a.txt": "aé aé aé aé\n"}, tmp_path / "t.json")

    assert "the tokenizer drops about " in words


def test_a_tokenizer_of_bytes_loses_nothing(tmp_path: Path) -> None:
    alphabet = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = tokenizers.Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "t.json"))

    words = warn(tmp_path, {"a.txt": "é 你 🦙 " * 20}, tmp_path / "t.json", training__steps=1)

    assert words == ""


def test_special_tokens_in_the_text_are_counted(tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "t.json", "a", "<unk>", special=("<end>",))

    words = warn(tmp_path, {"a.txt": "a <end> a a<end>"}, tmp_path / "t.json")

    assert "the text spells special tokens of the tokenizer 2 times" in words


LENGTHS: dict[str, tuple[int, int, int, str]] = {
    "less than a batch": (32, 32, 4, "1 row of text; a batch takes 4: 16.0 epochs over 4 steps."),
    "less than a batch, once": (32, 16, 1, "2 rows of text; a batch takes 4: 2.0 epochs over 1 step."),
    "many epochs": (
        64,
        16,
        6,
        "4 rows of text; a batch takes 4: 6.0 epochs over 6 steps. Each row is trained on about 6",
    ),
    "few epochs": (64, 16, 4, ""),
    "enough": (640, 16, 6, ""),
}


@pytest.mark.parametrize(("size", "length", "steps", "words"), LENGTHS.values(), ids=LENGTHS.keys())
def test_a_short_text_is_told(tmp_path: Path, size: int, length: int, steps: int, words: str) -> None:
    said = warn(tmp_path, {"a.txt": "x" * size}, training__sequenceLength=length, training__steps=steps)

    assert said.startswith(words)
    assert bool(said) == bool(words)


def test_a_short_held_out_text_is_told(tmp_path: Path) -> None:
    grow(tmp_path, **{"held.txt": "y" * 20})
    held_out = [{"name": "held", "path": str(tmp_path / "held.txt"), "everySteps": 5}]

    assert warn(tmp_path, {"a.txt": "x" * 640}, evaluation=held_out) == (
        "evaluation held: 1 row of text; a batch takes 4. The loss is that of few tokens."
    )


@pytest.mark.parametrize("suffix", ["json", "jsonl", "ndjson", "csv", "JSON"])
def test_records_are_told(tmp_path: Path, suffix: str) -> None:
    source = [{"name": "text", "path": str(tmp_path / "text"), "pattern": "*"}]

    words = warn(tmp_path, {f"a.{suffix}": "x" * 640}, data__train=source)

    assert "source text: 1 " in words
    assert "read as they are, with keys, quotes and separators." in words


def test_text_that_is_also_held_out_is_told(tmp_path: Path) -> None:
    grow(tmp_path, **{"held/copy.txt": "x" * 640, "held/own.txt": "y" * 640})
    held_out = [{"name": "held", "path": str(tmp_path / "held"), "everySteps": 5}]

    words = warn(tmp_path, {"deep/a.txt": "x" * 640, "b.txt": "z" * 640}, evaluation=held_out)

    assert words == "evaluation held: 1 document of 2 is trained on too (text: deep/a.txt): the loss on it says little."


def test_text_of_two_sources_is_told(tmp_path: Path) -> None:
    sources = [{"name": name, "path": str(tmp_path / "text")} for name in ("one", "two")]

    words = warn(tmp_path, {"a.txt": "x" * 640, "b.txt": "y" * 640}, data__train=sources)

    assert words == "2 files of more than one source: that text is trained on more often."


def test_copies_are_told(tmp_path: Path) -> None:
    assert warn(tmp_path, {"a.txt": "x" * 640, "b/a.txt": "x" * 640}) == (
        "1 document with the same text as another one: each is read."
    )


def test_names_that_lead_to_the_same_file_are_told(tmp_path: Path) -> None:
    words = warn(tmp_path, {"a.txt": "x" * 640, "b.txt": "-> a.txt", "c": "-> /nowhere"})

    assert words.splitlines() == [
        "source text: skipped 1 files or folders that were reached by another name too (b.txt).",
        "source text: skipped 1 links to what is not there (c).",
    ]


def test_the_report_counts_what_was_read_of_each_source(tmp_path: Path) -> None:
    grow(
        tmp_path,
        **{"one/a.txt": "é" * 30, "one/b.txt": "", "one/.c.txt": "c", "two/d.txt": "d" * 99, "held.txt": "x" * 80},
    )
    sources = [{"name": name, "path": str(tmp_path / name)} for name in ("one", "two")]
    held_out = [{"name": "held", "path": str(tmp_path / "held.txt"), "everySteps": 5}]
    (tmp_path / "text").mkdir()

    report = index_of(tmp_path, data__train=sources, evaluation=held_out).report

    one, two, held = report.sources
    assert (one.name, one.files, one.documents, one.characters, one.tokens) == ("one", 2, 1, 30, 61)
    assert (two.name, two.files, two.documents, two.characters, two.tokens) == ("two", 1, 1, 99, 100)
    assert (held.name, held.evaluation, held.tokens, held.rows, held.epochs) == ("held", True, 81, 5, None)
    assert (report.tokens, report.rows, one.rows, two.rows) == (161, 10, 4, 6)
    assert report.epochs == one.epochs == two.epochs == 2.4
    assert [(skip.reason, skip.count, skip.example) for skip in one.skipped] == [
        ("hidden", 1, ".c.txt"),
        ("empty", 1, "b.txt"),
    ]


def test_a_restart_reports_the_same_though_the_text_is_gone(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.txt": "x" * 64, ".b.txt": "b"})
    before = index_of(tmp_path).report
    (tmp_path / "text/a.txt").unlink()

    assert index_of(tmp_path).report == before


def test_an_edit_of_the_steps_changes_the_epochs(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.txt": "x" * 64})

    assert [index_of(tmp_path, training__steps=steps).report.epochs for steps in (6, 12)] == [6.0, 12.0]


def test_of_an_older_trainer_s_index_the_sums_are_reported(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.txt": "x" * 64})
    identity = index_of(tmp_path).train.identity
    data = tmp_path / "checkpoints/data"
    described = json.loads((data / identity / "index.json").read_text())
    older = {name: described[name] for name in ("format", "numTokens", "dtype")}
    (data / identity / "index.json").write_text(json.dumps(older))
    next(data.glob("*.account.json")).unlink()

    running = index_of(tmp_path).report
    assert (running.tokens, running.rows, running.sources) == (65, 4, ())

    root = tmp_path / "checkpoints"
    another = prepare(root, make_config(make_spec(root, tmp_path / "text"), uid="another"), leads=True).report
    assert [(one.characters, one.tokens, one.rows) for one in another.sources] == [(64, None, None)]


def test_an_account_that_is_damaged_is_left_out() -> None:
    assert load_texts("{") == []


def test_a_report_fits_beside_everything_else() -> None:
    skip = {"count": 10**9, "example": "é" * 64}
    reasons = ("hidden", "excluded", "otherName", "notSearched", "duplicate", "brokenLink", "notAFile", "empty")
    source = {"files": 1, "documents": 1, "characters": 1, "skipped": [{"reason": one, **skip} for one in reasons]}
    texts = [
        Text.model_validate(
            {"sources": [source | {"name": f"s{one}"} for one in range(24)], "warnings": ["é" * 999] * 99}
        )
    ]
    spec = make_config(make_spec(Path("/run"), Path("/text"))).spec

    report = make_report(texts, 100, {"": 9}, spec)

    assert len(report.model_dump_json()) < MAX_BYTES
    assert DataReport.model_validate_json(report.model_dump_json()) == report


def test_what_was_read_stands_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    grow(tmp_path / "text", **{"a.txt": "x" * 64, ".b.txt": "b"})
    index_of(tmp_path)

    assert (
        "text source=text files=1 documents=1 characters=64 tokens=65 rows=4 epochs=6.0 skipped=1 hidden (.b.txt)"
        in caplog.messages
    )
    assert any("4 rows of text; a batch takes 4" in message for message in caplog.messages)
