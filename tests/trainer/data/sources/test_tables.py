"""Parquet and Arrow: a column of each row is a document, and an invalid file or row is named."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from tests.support.trainer.texts import fail, find, grow, index_of
from trainingjob_trainer.data.sources.readers import read_documents

ROWS = ["one", "", "thé\nree"]


def write_parquet(table: pa.Table) -> bytes:
    content = io.BytesIO()
    parquet.write_table(table, content, row_group_size=2)
    return content.getvalue()


def write_arrow(new: Callable[..., Any]) -> Callable[[pa.Table], bytes]:
    def write(table: pa.Table) -> bytes:
        content = io.BytesIO()
        with new(content, table.schema) as writer:
            writer.write_table(table, 2)
        return content.getvalue()

    return write


WRITERS: dict[str, tuple[str, Callable[[pa.Table], bytes]]] = {
    "Parquet": ("parquet", write_parquet),
    "an Arrow file": ("arrow", write_arrow(ipc.new_file)),
    "an Arrow stream": ("arrow", write_arrow(ipc.new_stream)),
}
EACH = pytest.mark.parametrize(("name", "write"), WRITERS.values(), ids=WRITERS)


def read(tmp_path: Path, name: str, content: bytes, **options: Any) -> list[bytes]:
    grow(tmp_path, **{f"a.{name}": content})
    return list(read_documents(find(tmp_path, format=name, **options).files[0]))


@EACH
@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=["string", "large", "coded"]
)
def test_each_row_is_a_document(tmp_path: Path, name: str, write: Callable[..., bytes], kind: pa.DataType) -> None:
    table = pa.table({"id": [1, 2, 3], "body": pa.array(ROWS, pa.string()).cast(kind)})

    assert read(tmp_path, name, write(table), column="body") == [text.encode() for text in ROWS]


@EACH
@pytest.mark.parametrize("column", ["meta.text", "meta.by.text"])
def test_a_nested_column_is_found_by_its_path(
    tmp_path: Path, name: str, write: Callable[..., bytes], column: str
) -> None:
    rows = [{"text": text, "by": {"text": text}, "id": 1} for text in ROWS]

    assert read(tmp_path, name, write(pa.table({"meta": rows})), column=column) == [text.encode() for text in ROWS]


@EACH
def test_a_row_whose_outer_field_is_null_has_no_text(tmp_path: Path, name: str, write: Callable[..., bytes]) -> None:
    table = pa.table({"meta": pa.array([{"text": "a"}, None], pa.struct([("text", pa.string())]))})

    error = fail(lambda: read(tmp_path, name, write(table), column="meta.text"))

    assert "row 2: `meta.text` must be a string, but is null." in str(error)


@EACH
def test_a_missing_nested_column_names_those_that_there_are(
    tmp_path: Path, name: str, write: Callable[..., bytes]
) -> None:
    table = pa.table({"meta": [{"texts": "a"}]})

    error = fail(lambda: read(tmp_path, name, write(table), column="meta.text"))

    assert "has no field `meta.text`. It has `meta.texts`." in str(error)


@EACH
def test_a_name_with_a_dot_comes_before_a_nested_one(tmp_path: Path, name: str, write: Callable[..., bytes]) -> None:
    table = pa.table({"a.b": ["whole"], "a": [{"c": "nested"}]})

    assert read(tmp_path, name, write(table), column="a.b") == [b"whole"]


@EACH
def test_tokens_are_those_of_the_same_text_in_json_lines(
    tmp_path: Path, name: str, write: Callable[..., bytes]
) -> None:
    grow(tmp_path / "text", **{f"a.{name}": write(pa.table({"text": ROWS}))})
    source = {"name": "text", "format": name, "path": str(tmp_path / "text")}

    made = index_of(tmp_path, training__sequenceLength=2, data__train=[source])

    assert made.train.tokens.tolist() == [*b"one", 256, *"thé\nree".encode(), 256]
    assert (made.report.sources[0].files, made.report.sources[0].documents) == (1, 2)


INVALID = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")])
NO_TEXT: dict[str, tuple[dict[str, Any], str, str]] = {
    "null": ({"text": ["a", "b", None]}, "row 3: `text` must be a string, but is null.", "path"),
    "NUL": ({"text": ["a\0"]}, "row 1: `text` must not contain NUL characters.", "path"),
    "no UTF-8": ({"text": INVALID}, "row 1: `text` must be UTF-8, but byte 1 is 0xff.", "path"),
    "numbers": ({"text": [1]}, "`text` must hold strings, but holds int64. Set `column` to another.", "column"),
    "another column": ({"texts": ["a"], "id": [1]}, "It has `id`, `texts`. Set `column`", "column"),
    "a near name": ({"texts": ["a"]}, 'Nearest legal value: "texts".', "column"),
}


@EACH
@pytest.mark.parametrize(("columns", "want", "field"), NO_TEXT.values(), ids=NO_TEXT)
def test_a_row_without_text_fails_with_its_place(
    tmp_path: Path, name: str, write: Callable[..., bytes], columns: dict[str, Any], want: str, field: str
) -> None:
    error = fail(lambda: read(tmp_path, name, write(pa.table(columns))))

    assert want in str(error)
    assert f"a.{name}" in str(error)
    assert error.path == f"spec.data.train[0].{field}"
    assert error.fatal


@EACH
def test_a_column_of_two_is_not_chosen(tmp_path: Path, name: str, write: Callable[..., bytes]) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])

    assert "must have one column `text`, but has 2." in str(fail(lambda: read(tmp_path, name, write(table))))


@EACH
def test_a_truncated_file_fails_with_its_name(tmp_path: Path, name: str, write: Callable[..., bytes]) -> None:
    content = write(pa.table({"text": ROWS * 100}))

    error = fail(lambda: read(tmp_path, name, content[: len(content) // 2]))

    assert f"a.{name} must be complete " in str(error)
    assert "Copy the file again, or leave it out with `exclude`." in str(error)


@pytest.mark.parametrize(("name", "kind"), [("parquet", "Parquet"), ("arrow", "Arrow")])
@pytest.mark.parametrize(
    ("content", "want"),
    [(b"the cat", "begins with 0x74686520"), (b"", "is empty"), (b"BZh9", "is bzip2")],
    ids=["text", "empty", "bzip2"],
)
def test_a_file_of_another_format_fails_with_what_it_is(
    tmp_path: Path, name: str, kind: str, content: bytes, want: str
) -> None:
    error = fail(lambda: read(tmp_path, name, content))

    assert f"a.{name} must be {kind}, but {want}. Set `format` to that of the file" in str(error)
