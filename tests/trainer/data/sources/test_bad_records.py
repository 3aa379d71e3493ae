"""Bad records: they fail the job by default, or are left out, counted and reported."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from tests.support.trainer.texts import fail, grow, index_of

GOOD = b'{"text": "one"}'
BAD_LINES: dict[str, tuple[bytes, str]] = {
    "no JSON": (b'{"text": ', "line 2: must be a JSON object (Expecting value)"),
    "a truncated line": (b'{"text": "tw', "line 2: must be a JSON object (Unterminated string starting at)"),
    "a list": (b"[1]", "line 2: must be a JSON object, but is a list"),
    "no column": (b'{"id": 1}', "line 2 has no field `text`. It has `id`."),
    "null": (b'{"text": null}', "line 2: `text` must be a string, but is null."),
    "a number": (b'{"text": 5}', "line 2: `text` must be a string, but is a number."),
    "no UTF-8": (b'{"text": "\xff"}', "byte"),
    "Latin-1 among UTF-8": ("{'text': 'déjà'}".encode("latin-1"), "byte"),
    "NUL": (b'{"text": "a\0"}', "NUL"),
    "an escaped NUL": (b'{"text": "a\\u0000"}', "line 2: `text` must not contain NUL characters."),
    "half of a surrogate pair": (b'{"text": "\\ud800"}', "line 2: `text` must be valid Unicode"),
    "a wide encoding": ('{"text": "two"}'.encode("utf-16-le"), "NUL"),
    "nested too deeply": (b"[" * 100_000, "it is nested too deeply"),
    "too many digits": (b'{"text": "a", "id": ' + b"9" * 5000 + b"}", "more than 4,300 digits"),
    "several records": (b'{"text": "two"}{"text": "two"}', "line 2: must be a JSON object (Extra data)"),
}


def prepare(tmp_path: Path, **options: Any) -> Any:
    source = {"name": "text", "format": "jsonl", "path": str(tmp_path / "text"), **options}
    return index_of(tmp_path, training__sequenceLength=2, data__train=[source])


def text_of(made: Any) -> bytes:
    return bytes(one if one < 256 else ord("|") for one in made.train.tokens.tolist())


@pytest.mark.parametrize(("line", "words"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_in_the_middle_fails_or_is_skipped(tmp_path: Path, line: bytes, words: str) -> None:
    grow(tmp_path / "text", **{"a.jsonl": b"\n".join((GOOD, line, b'{"text": "three"}'))})

    error = fail(lambda: prepare(tmp_path))
    made = prepare(tmp_path, onBadRecord="skip")
    again = fail(lambda: prepare(tmp_path, onBadRecord="fail"))

    assert words in str(error)
    assert "a.jsonl" in str(error)
    assert str(again) == str(error)
    assert text_of(made) == b"one|three|"
    assert [(one.reason, one.count, one.example) for one in made.report.sources[0].skipped] == [
        ("badRecord", 1, "a.jsonl")
    ]
    (warning,) = (one for one in made.report.warnings if "bad record" in one)
    assert warning.startswith("source text: skipped 1 bad record: 1 in a.jsonl. The first: ")
    assert "line 2" in warning


def test_bad_records_are_counted_by_file(tmp_path: Path) -> None:
    files = {
        f"{name}.jsonl": b"\n".join((GOOD, *[b"{"] * count)) for name, count in zip("abcde", range(5), strict=True)
    }
    grow(tmp_path / "text", **files)

    made = prepare(tmp_path, onBadRecord="skip")

    (warning,) = (one for one in made.report.warnings if "bad record" in one)
    assert "skipped 10 bad records: 1 in b.jsonl, 2 in c.jsonl, 3 in d.jsonl and 1 more file. The first: " in warning
    assert made.report.sources[0].documents == 5


NOT_SKIPPED: dict[str, tuple[bytes, dict[str, str], str]] = {
    "only bad records": (b"{\n[", {}, "must have a valid record, but its 2 records are bad. The first: "),
    "no column in any record": (GOOD, {"column": "body"}, "line 1 has no field `body`"),
    "another format": (gzip.compress(GOOD), {}, "is not UTF-8 text. It is gzip: decompress it"),
    "another encoding": (GOOD.decode().encode("utf-16"), {}, "is not UTF-8 text. It is UTF-16 text"),
    "truncated": (gzip.compress(GOOD)[:-9], {"pattern": "*.jsonl.gz"}, "must be complete gzip data"),
}


@pytest.mark.parametrize(("content", "options", "words"), NOT_SKIPPED.values(), ids=NOT_SKIPPED)
def test_a_file_without_a_good_record_fails(
    tmp_path: Path, content: bytes, options: dict[str, str], words: str
) -> None:
    grow(tmp_path / "text", **{f"a.jsonl{options.get('pattern', '')[7:]}": content})

    assert words in str(fail(lambda: prepare(tmp_path, onBadRecord="skip", **options)))


def write_table(path: Path, name: str, table: pa.Table) -> None:
    path.mkdir()
    if name == "parquet":
        parquet.write_table(table, path / "a.parquet")
    else:
        with ipc.new_stream(path / "a.arrow", table.schema) as stream:
            stream.write_table(table)


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_bad_rows_of_tables_are_skipped(tmp_path: Path, name: str) -> None:
    texts = pa.array([b"one", None, b"\xff", b"a\0b", b"five"], pa.binary()).view(pa.string())
    write_table(tmp_path / "text", name, pa.table({"text": texts}))

    error = fail(lambda: prepare(tmp_path, format=name))
    made = prepare(tmp_path, format=name, onBadRecord="skip")

    assert "row 2: `text` must be a string, but is null." in str(error)
    assert text_of(made) == b"one|five|"
    assert [(one.reason, one.count) for one in made.report.sources[0].skipped] == [("badRecord", 3)]


@pytest.mark.parametrize("name", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", ["cut", "no column", "numbers"])
def test_a_table_that_cannot_be_read_is_not_skipped(tmp_path: Path, name: str, kind: str) -> None:
    columns = {"cut": {"text": ["one"] * 99}, "no column": {"body": ["one"]}, "numbers": {"text": [1]}}[kind]
    write_table(tmp_path / "text", name, pa.table(columns))
    path = tmp_path / f"text/a.{name}"
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:-20])

    error = fail(lambda: prepare(tmp_path, format=name, onBadRecord="skip"))

    want = {
        "cut": "must be complete",
        "no column": "has no field `text`",
        "numbers": "must hold strings, but holds int64",
    }
    assert want[kind] in str(error)


def test_bad_conversations_are_skipped(tmp_path: Path) -> None:
    records = [{"q": "a", "a": "b"}, {"q": 1, "a": "b"}, {"q": "c", "a": "d"}, {"q": "c"}]
    grow(tmp_path / "text", **{"a.jsonl": "\n".join(json.dumps(one) for one in records).encode()})

    made = prepare(tmp_path, onBadRecord="skip", prompt="q", completion="a")

    assert text_of(made) == b"ab|cd|"
