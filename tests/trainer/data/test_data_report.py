"""The data report of a text: read and skipped files, and warnings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tests.support.trainer.texts import dataset_folder, grow, index_of, make_tokenizer, use
from tests.support.trainer.tiny import make_config, make_spec
from trainingjob_api.data_report import DataReport
from trainingjob_trainer.data.data_report import MAX_REPORT_BYTES, DatasetReport, build_data_report, load_reports
from trainingjob_trainer.data.token_dataset import TokenDataset


def warn(tmp_path: Path, files: dict[str, str], tokenizer: Path | None = None, **changes: Any) -> str:
    grow(tmp_path / "text", **files)
    made = index_of(tmp_path, **(use(tokenizer) if tokenizer else {}) | changes)
    return "\n".join(made.report.warnings)


def test_missing_end_of_document_reports_candidate_tokens(tmp_path: Path) -> None:
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
def test_short_text_has_a_warning(tmp_path: Path, size: int, length: int, steps: int, words: str) -> None:
    printed = warn(tmp_path, {"a.txt": "x" * size}, training__sequenceLength=length, training__steps=steps)

    assert printed.startswith(words)
    assert bool(printed) == bool(words)


def test_short_evaluation_text_has_a_warning(tmp_path: Path) -> None:
    grow(tmp_path, **{"held.txt": "y" * 20})
    held_out = [{"name": "held", "path": str(tmp_path / "held.txt"), "everySteps": 5}]

    assert warn(tmp_path, {"a.txt": "x" * 640}, evaluation=held_out) == (
        "evaluation held: 1 row of text; a batch takes 4. The loss is that of few tokens."
    )


@pytest.mark.parametrize("suffix", ["json", "jsonl", "ndjson", "csv", "JSON"])
def test_records_have_a_warning(tmp_path: Path, suffix: str) -> None:
    source = [{"name": "text", "path": str(tmp_path / "text"), "pattern": "*"}]

    words = warn(tmp_path, {f"a.{suffix}": "x" * 640}, data__train=source)

    assert "source text: 1 " in words
    assert "read as they are, with keys, quotes and separators." in words


def test_evaluation_text_in_training_data_has_a_warning(tmp_path: Path) -> None:
    grow(tmp_path, **{"held/copy.txt": "x" * 640, "held/own.txt": "y" * 640})
    held_out = [{"name": "held", "path": str(tmp_path / "held"), "everySteps": 5}]

    words = warn(tmp_path, {"deep/a.txt": "x" * 640, "b.txt": "z" * 640}, evaluation=held_out)

    assert words == "evaluation held: 1 document of 2 is trained on too (text: deep/a.txt): the loss on it says little."


def test_text_of_two_sources_has_a_warning(tmp_path: Path) -> None:
    sources = [{"name": name, "path": str(tmp_path / "text")} for name in ("one", "two")]

    words = warn(tmp_path, {"a.txt": "x" * 640, "b.txt": "y" * 640}, data__train=sources)

    assert words == "2 files of more than one source: that text is trained on more often."


def test_copies_have_a_warning(tmp_path: Path) -> None:
    assert warn(tmp_path, {"a.txt": "x" * 640, "b/a.txt": "x" * 640}) == (
        "1 file with the same text as another one: each is read."
    )


def test_names_of_the_same_file_have_a_warning(tmp_path: Path) -> None:
    words = warn(tmp_path, {"a.txt": "x" * 640, "b.txt": "-> a.txt", "c": "-> /nowhere"})

    assert words.splitlines() == [
        "source text: skipped 1 files or folders that were reached by another name too (b.txt).",
        "source text: skipped 1 links whose target does not exist (c).",
    ]


def test_report_counts_the_text_of_each_source(tmp_path: Path) -> None:
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


def test_batches_that_grow_take_more_epochs(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.txt": "x" * 64})
    growing = [{"fromStep": 5, "globalBatchSize": 12}]

    assert index_of(tmp_path, training__batchSchedule=growing).report.epochs == 4 + 2 * 3


def test_of_an_older_trainer_s_index_the_sums_are_reported(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.txt": "x" * 64})
    identity = index_of(tmp_path).train.dataset_hash
    data = tmp_path / "checkpoints/data"
    older = dataset_folder(tmp_path).rename(data / identity)  # which named a folder by its content
    described = json.loads((older / "index.json").read_text())
    kept = {name: described[name] for name in ("format", "numTokens", "dtype")}
    (older / "index.json").write_text(json.dumps(kept))
    next(data.glob("*.account.json")).unlink()
    next(data.glob("*-*.json")).write_text(json.dumps({"": identity}))

    running = index_of(tmp_path)

    assert running.train.dataset_hash == identity
    assert (running.report.tokens, running.report.rows, running.report.sources) == (65, 4, ())


def test_an_account_that_is_damaged_is_left_out() -> None:
    assert load_reports("{") == []


def test_report_fits_into_the_status() -> None:
    skip = {"count": 10**9, "example": "é" * 64}
    reasons = ("hidden", "excluded", "otherName", "notSearched", "duplicate", "brokenLink", "notAFile", "empty")
    source = {"files": 1, "documents": 1, "characters": 1, "skipped": [{"reason": one, **skip} for one in reasons]}
    texts = [
        DatasetReport.model_validate(
            {"sources": [source | {"name": f"s{one}"} for one in range(80)], "warnings": ["é" * 999] * 99}
        )
    ]
    spec = make_config(make_spec(Path("/run"), Path("/text"))).spec

    report = build_data_report(texts, TokenDataset("made up", np.zeros(145, np.uint16), 16), {}, spec)

    assert len(report.model_dump_json()) < MAX_REPORT_BYTES
    assert DataReport.model_validate_json(report.model_dump_json()) == report


def test_data_report_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    grow(tmp_path / "text", **{"a.txt": "x" * 64, ".b.txt": "b"})
    index_of(tmp_path)

    assert (
        "text source=text files=1 documents=1 characters=64 tokens=65 rows=4 epochs=6.0 skipped=1 hidden (.b.txt)"
        in caplog.messages
    )
    assert any("4 rows of text; a batch takes 4" in message for message in caplog.messages)


def test_epochs_that_were_asked_for_are_no_surprise(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.txt": "a" * 400})
    changes = {"training__sequenceLength": 4, "training__steps": None}

    report = index_of(tmp_path, training__epochs=9, **changes).report

    assert (report.epochs, report.warnings) == (9.0, ())


def test_a_batch_that_the_epochs_do_not_fill_is_reported(tmp_path: Path) -> None:
    changes = {"training__sequenceLength": 16, "training__steps": None, "training__epochs": 1}

    words = warn(tmp_path, {"a.txt": "a" * 40}, **changes)

    assert words == (
        "2 rows of text; a batch takes 4: 1.0 epochs over 1 step. The rest of its only batch is padding. Add text, or "
        "train on smaller batches."
    )
