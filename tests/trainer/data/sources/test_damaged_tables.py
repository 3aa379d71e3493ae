"""Damaged tables fail with their name: no row is lost, replaced or read from outside of the file."""

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from tests.support.trainer.texts import fail
from tests.trainer.data.sources.test_tables import WRITERS, read, write_arrow

ROWS = ["one", "", "three"]
ARROW = pytest.mark.parametrize("kind", ["an Arrow file", "an Arrow stream"])


def write_plain_parquet(**options: Any) -> bytearray:
    content = io.BytesIO()
    table = pa.table({"text": ROWS})
    parquet.write_table(table, content, compression="none", use_dictionary=False, **options)
    return bytearray(content.getvalue())


def replace(content: bytes, layout: str, good: tuple[int, ...], bad: tuple[int, ...]) -> bytes:
    """Return content with other numbers in the only place that has these."""
    assert content.count(struct.pack(layout, *good)) == 1
    return content.replace(struct.pack(layout, *good), struct.pack(layout, *bad))


def write_whole(kind: str, table: pa.Table) -> bytes:
    """Return a file whose rows are one batch."""
    content = io.BytesIO()
    with (ipc.new_file if kind == "an Arrow file" else ipc.new_stream)(content, table.schema) as writer:
        writer.write_table(table)
    return content.getvalue()


def test_a_page_with_another_checksum_is_rejected(tmp_path: Path) -> None:
    content = write_plain_parquet(write_page_checksum=True, write_statistics=False)
    content[content.index(b"three")] ^= 1

    assert "a.parquet must be complete Parquet data, but cannot be read" in str(
        fail(lambda: read(tmp_path, "parquet", bytes(content)))
    )


def test_a_page_of_an_unknown_type_does_not_hide_its_rows(tmp_path: Path) -> None:
    content = write_plain_parquet()
    content[5] ^= 1  # the type of the first page: the library skips pages of unknown types

    assert (
        "a.parquet must be complete Parquet data, but cannot be read: it has 0 of 3 rows. Copy the file again"
        in str(fail(lambda: read(tmp_path, "parquet", bytes(content))))
    )


@pytest.mark.parametrize("name", [b"te\xfft", b"body"], ids=["no UTF-8", "another name"])
def test_a_damaged_name_of_a_column_is_rejected(tmp_path: Path, name: bytes) -> None:
    content = bytes(write_plain_parquet(store_schema=False)).replace(b"text", name)

    error = fail(lambda: read(tmp_path, "parquet", content))

    assert "a.parquet" in str(error)
    assert error.fatal


COLUMNS: dict[str, tuple[pa.Array, str, tuple[int, ...], tuple[int, ...]]] = {
    "a text of negative length": (pa.array(ROWS), "<4i", (0, 3, 3, 8), (0, 3, -1, 8)),
    "a text outside of the file": (pa.array(ROWS), "<4i", (0, 3, 3, 8), (0, 3, 3, 1 << 30)),
    "a long text": (pa.array(ROWS, pa.large_string()), "<4q", (0, 3, 3, 8), (0, 3, 3, 1 << 40)),
    "a coded text": (
        pa.DictionaryArray.from_arrays(pa.array([2, 1, 2], pa.int32()), pa.array(ROWS)),
        "<3i",
        (2, 1, 2),
        (2, 1, 1 << 28),
    ),
}


@ARROW
@pytest.mark.parametrize(("column", "layout", "good", "bad"), COLUMNS.values(), ids=COLUMNS)
def test_values_outside_of_the_file_are_rejected(
    tmp_path: Path, kind: str, column: pa.Array, layout: str, good: tuple[int, ...], bad: tuple[int, ...]
) -> None:
    content = replace(write_whole(kind, pa.table({"text": column})), layout, good, bad)

    assert "a.arrow must be complete Arrow data, but cannot be read" in str(
        fail(lambda: read(tmp_path, "arrow", content))
    )


CONVERSATIONS = [[{"role": "user", "content": text}] * count for text, count in (("one", 1), ("two", 2), ("three", 4))]


@ARROW
@pytest.mark.parametrize("bad", [(0, 1, -1, 7), (0, 1, 3, 1 << 30), (-1, 1, 3, 7)])
def test_messages_outside_of_the_file_are_rejected(tmp_path: Path, kind: str, bad: tuple[int, ...]) -> None:
    whole = write_whole(kind, pa.table({"messages": CONVERSATIONS}))

    assert len(read(tmp_path / "whole", "arrow", whole, messages="messages")) == 3
    assert "a.arrow must be complete Arrow data, but cannot be read" in str(
        fail(lambda: read(tmp_path, "arrow", replace(whole, "<4i", (0, 1, 3, 7), bad), messages="messages"))
    )


VIEWS: dict[str, tuple[pa.Array, tuple[int, ...], tuple[int, ...]]] = {
    "a list": (pa.array([["a"] * 7919, ["b"] * 5], pa.list_view(pa.string())), (0, 7919), (0, 1 << 28)),
    "a text": (pa.array(["q" * 7919, "b"], pa.string_view()), (7919, 0x71717171), (1 << 30, 0x71717171)),
}


@ARROW
@pytest.mark.parametrize(("column", "good", "bad"), VIEWS.values(), ids=VIEWS)
def test_views_outside_of_the_file_are_rejected(
    tmp_path: Path, kind: str, column: pa.Array, good: tuple[int, ...], bad: tuple[int, ...]
) -> None:
    """A read of them ends the process."""
    columns = {"role": pa.array(["user", "assistant"]), "content": pa.array(["a", "b"]), "more": column}
    messages = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    whole = write_whole(kind, pa.table({"messages": pa.ListArray.from_arrays([0, 1, 2], messages)}))

    assert len(read(tmp_path / "whole", "arrow", whole, messages="messages")) == 2
    assert "a.arrow must be complete Arrow data, but cannot be read" in str(
        fail(lambda: read(tmp_path, "arrow", replace(whole, "<2i", good, bad), messages="messages"))
    )


@pytest.mark.parametrize(("name", "write"), WRITERS.values(), ids=WRITERS)
def test_a_table_without_conversations_has_no_documents(tmp_path: Path, name: str, write: Callable[..., bytes]) -> None:
    table = pa.table({"messages": pa.array(CONVERSATIONS)[:0]})

    assert read(tmp_path, name, write(table), messages="messages") == []


def test_data_after_the_end_of_a_stream_is_rejected(tmp_path: Path) -> None:
    stream = write_arrow(ipc.new_stream)(pa.table({"text": ROWS}))

    assert "a.arrow must hold one stream, but has more data after its end. Write each stream to a file." in str(
        fail(lambda: read(tmp_path, "arrow", stream * 2))
    )
