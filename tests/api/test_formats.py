"""The table of data formats, and kinds of files by suffix."""

from typing import get_args

import pytest

from trainingjob_api.formats import (
    BINARY,
    COMPRESSED,
    FORMATS,
    RECORDS,
    Format,
    FormatName,
    advise_format,
    find_compression,
    find_content_name,
    find_records,
    find_unsupported,
    formats_with,
    is_of_format,
    without_compression,
)
from trainingjob_api.spec.data import DEFAULT_FORMAT, TextSource

ORC = Format("ORC row", "**/*.orc", ("ORC",), ("column",))


@pytest.fixture
def orc(monkeypatch: pytest.MonkeyPatch) -> FormatName:
    name: FormatName = "orc"  # type: ignore[assignment]
    monkeypatch.setitem(FORMATS, name, ORC)
    return name


def test_each_format_has_a_row_and_the_first_is_the_default() -> None:
    assert tuple(FORMATS) == get_args(FormatName)
    assert next(iter(FORMATS)) == DEFAULT_FORMAT


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_names_known_kinds_and_fields_of_a_source(name: FormatName) -> None:
    row = FORMATS[name]

    assert set(row.kinds) <= {*BINARY.values(), *COMPRESSED.values(), *RECORDS.values()}
    assert set(row.fields) <= set(TextSource.model_fields)
    assert all(TextSource.model_fields[field].default is None for field in row.fields)
    assert find_unsupported(row.pattern, name) == ""


@pytest.mark.parametrize("name", FORMATS)
def test_descriptions_list_each_format(name: FormatName) -> None:
    fields, row = TextSource.model_fields, FORMATS[name]

    assert f"`{name}` ({row.content})" in (fields["format"].description or "")
    assert not row.pattern or f"`{row.pattern}`" in (fields["pattern"].description or "")
    assert all(f"`{name}`" in (fields[field].description or "") for field in row.fields)


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_a_format_with_compressed_parts_is_not_compressed_as_a_whole(name: FormatName) -> None:
    assert find_unsupported(f"a.{name}", name) == ""
    assert find_unsupported(f"a.{name}.gz", name) == "gzip"
    assert without_compression(f"a.{name}.gz", name) == f"a.{name}"


def test_a_row_makes_a_binary_kind_readable(orc: FormatName) -> None:
    assert find_unsupported("**/*.orc", orc) == ""
    assert find_unsupported("**/*.orc", "text") == "ORC"
    assert find_unsupported("**/*.arrow", orc) == "Arrow"
    assert without_compression("a.orc.gz", orc) == "a.orc"
    assert without_compression("a.orc.gz", "text") == ""
    assert advise_format("ORC", "convert it") == "set `format: orc`"
    assert formats_with("column")[-1] == "orc"


def test_a_kind_without_format_must_be_converted() -> None:
    assert advise_format("ORC", "convert it") == "convert it"
    assert advise_format("JSON Lines", "convert it") == "set `format: jsonl`"


UNSUPPORTED = (
    "a.lz4",
    "a.TXT.LZ4",
    "*.br",
    "a.tar.gz",
    "a.tgz",
    "a.parquet",
    "a.parquet.gz",
    "**/*.parquet",
    "a.zip",
    "a.arrow",
    "a.npy",
    "a.tar",
    "x.pdf",
)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_kinds_that_are_not_text_are_found_by_suffix(name: str) -> None:
    assert find_unsupported(name, "text")


@pytest.mark.parametrize(
    "name", ["a.txt", "a.py", "gz", "a.gz", "a.TXT.GZ", "*.bz2", "a.gz/b", "a.d/b", "*", "a.bin", "/data/wiki.zip/"]
)
def test_other_names_have_no_kind(name: str) -> None:
    assert find_unsupported(name, "text") == ""
    assert find_records(name, "text") == ""


@pytest.mark.parametrize("name", ["a.json", "*.jsonl", "**/*.ndjson", "a.JSON", "x.csv", "x.tsv", "x.csv.GZ"])
def test_records_are_found_by_suffix_if_they_are_read_as_text(name: str) -> None:
    assert find_records(name, "text")
    assert find_records(name, "jsonl") == ""


@pytest.mark.parametrize(
    ("name", "compression", "content"),
    [
        ("*.txt.gz", "gzip", "*.txt"),
        ("x.jsonl.BZ2", "bzip2", "x.jsonl"),
        ("a.xz", "xz", "a"),
        ("a.txt.zst", "zstd", "a.txt"),
        ("a.txt.lz4", "", "a.txt.lz4"),
        ("a.tgz", "", "a.tgz"),
        ("a.txt", "", "a.txt"),
    ],
)
def test_a_compression_that_is_decompressed_is_found_by_suffix(name: str, compression: str, content: str) -> None:
    assert find_compression(name) == compression
    assert find_content_name(name) == content


@pytest.mark.parametrize(
    ("name", "want"),
    [("*.txt.gz", "*.txt"), ("*.gz", ""), ("a.tar.gz", ""), ("a.txt", ""), ("x.jsonl.ZST", "x.jsonl"), ("a.zip", "")],
)
def test_a_compressed_file_has_a_plain_name(name: str, want: str) -> None:
    assert without_compression(name, "text") == want


@pytest.mark.parametrize(
    ("name", "format_name", "want"),
    [
        ("a/b.jsonl", "jsonl", True),
        ("a.json.gz", "jsonl", True),
        ("a.ndjson", "jsonl", True),
        ("a.parquet", "jsonl", False),
        ("a.pq", "parquet", True),
        ("a.parquet.gz", "parquet", False),
        ("a.txt.zst", "text", True),
        ("README.md", "text", False),
        ("parquet", "parquet", False),
        ("README", "synthetic", False),
    ],
)
def test_files_of_a_format_are_found_by_suffix(name: str, format_name: FormatName, want: bool) -> None:
    assert is_of_format(name, format_name) is want
