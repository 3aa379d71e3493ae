"""JSON Lines: one field of each record is a document, and an invalid record is named with its line."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.texts import fail, find, grow, index_of
from trainingjob_trainer.data.sources.readers import read_documents

RECORDS = b'{"text": "one", "id": 1}\n\n{"id": 2, "text": ""}\r\n{"text": "th\\u00e9\\nree"}'


def read(tmp_path: Path, content: bytes, **options: Any) -> list[bytes]:
    grow(tmp_path, **{"a.jsonl": content})
    return list(read_documents(find(tmp_path, format="jsonl", **options).files[0]))


def test_each_record_is_a_document(tmp_path: Path) -> None:
    assert read(tmp_path, RECORDS) == [b"one", b"", "thé\nree".encode()]


def test_a_column_is_chosen_by_name(tmp_path: Path) -> None:
    assert read(tmp_path, b'{"text": "no", "content": "yes"}', column="content") == [b"yes"]


def test_documents_are_counted_apart_from_files_and_tokenized_one_by_one(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.jsonl": RECORDS, "b.jsonl": b'{"text": "x"}\n', "c.txt": "not read"})

    made = index_of(
        tmp_path,
        training__sequenceLength=2,
        data__train=[{"name": "text", "format": "jsonl", "path": str(tmp_path / "text")}],
    )

    report = made.report.sources[0]
    assert (report.files, report.documents, report.characters) == (2, 3, 11)
    assert {one.reason: one.count for one in report.skipped} == {"empty": 1, "otherName": 1}
    assert made.train.tokens.tolist() == [*b"one", 256, *"thé\nree".encode(), 256, *b"x", 256]
    assert made.report.warnings == ()


NOT_RECORDS = {
    "no JSON": (b'{"text": "a"}\n{"text": ', "line 2: must be a JSON object (Expecting value)"),
    "a list": (b"[1, 2]", "line 1: must be a JSON object, but is a list"),
    "null": (b"null", "line 1: must be a JSON object, but is null"),
    "pretty-printed": (b'{\n  "text": "a"\n}', "Write each record on one line, as JSON Lines."),
    "nested too deeply": (b"[" * 100_000, "it is nested too deeply"),
    "a number with too many digits": (
        b'{"text": "a", "id": ' + b"9" * 5000 + b"}",
        "line 1: must be a JSON object (a number has more than 4,300 digits)",
    ),
    "another field": (b'{"Text": "a", "id": 1}', "line 1 has no field `text`. It has `Text`, `id`. Set `column`"),
    "no field": (b"{}", "line 1 has no field `text`. It has no fields."),
    "a number": (b'{"text": 5}', "line 1: `text` must be a string, but is a number."),
    "a list of strings": (b'{"text": ["a"]}', "line 1: `text` must be a string, but is a list."),
    "NUL": (b'{"text": "a\\u0000"}', "line 1: `text` must not contain NUL characters."),
    "half of a surrogate pair": (b'{"text": "\\ud800"}', "line 1: `text` must be valid Unicode"),
    "no UTF-8": (b'{"text": "\xff"}', "is not UTF-8 text: byte 10 is 0xff"),
}


@pytest.mark.parametrize(("content", "want"), NOT_RECORDS.values(), ids=NOT_RECORDS.keys())
def test_invalid_record_fails_with_its_line(tmp_path: Path, content: bytes, want: str) -> None:
    error = fail(lambda: read(tmp_path, content))

    assert want in str(error)
    assert "a.jsonl" in str(error)
    assert error.fatal


@pytest.mark.parametrize(
    ("record", "column"),
    [
        (b'{"data": {"text": "yes"}}', "data.text"),
        (b'{"a": {"b": {"c": "yes"}}}', "a.b.c"),
        (b'{"a": {"b.c": "yes"}}', "a.b.c"),
        (b'{"a.b": "yes", "a": {"b": "no"}}', "a.b"),
    ],
)
def test_dots_lead_into_nested_objects(tmp_path: Path, record: bytes, column: str) -> None:
    assert read(tmp_path, record, column=column) == [b"yes"]


@pytest.mark.parametrize(
    ("record", "want"),
    [
        (b'{"data": {"texts": "a"}}', "line 1 has no field `data.text`. It has `data.texts`. Set `column`"),
        (b'{"data": "text"}', "line 1 has no field `data.text`. It has no fields. Set `column`"),
        (b'{"id": 1}', "line 1 has no field `data.text`. It has `id`. Set `column`"),
    ],
)
def test_a_missing_nested_field_names_those_that_there_are(tmp_path: Path, record: bytes, want: str) -> None:
    assert want in str(fail(lambda: read(tmp_path, record, column="data.text")))


def test_a_near_name_is_suggested_at_the_column(tmp_path: Path) -> None:
    error = fail(lambda: read(tmp_path, b'{"texts": "a"}'))

    assert error.path == "spec.data.train[0].column"
    assert 'Nearest legal value: "texts".' in str(error)


def test_records_that_join_to_the_same_text_are_another_dataset(tmp_path: Path) -> None:
    hashes = set()
    for number, texts in enumerate((["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""])):
        folder = tmp_path / str(number)
        lines = "\n".join(json.dumps({"text": text}) for text in texts)
        grow(folder / "text", **{"a.jsonl": lines.encode()})
        source = {"name": "text", "format": "jsonl", "path": str(folder / "text")}
        hashes.add(index_of(folder, training__sequenceLength=2, data__train=[source]).train.dataset_hash)

    assert len(hashes) == 4


def test_another_column_of_the_same_files_is_another_dataset(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.jsonl": b'{"text": "first", "note": "other"}'})
    source = {"name": "text", "format": "jsonl", "path": str(tmp_path / "text")}

    made = [
        index_of(tmp_path, training__sequenceLength=2, data__train=[source | more]).train.tokens.tolist()
        for more in ({}, {"column": "note"}, {"column": "text"}, {"format": "text", "pattern": "*.jsonl"})
    ]

    assert [bytes(one[:5]) for one in made] == [b"first", b"other", b"first", b'{"tex']
