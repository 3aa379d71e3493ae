"""Data formats: the table of those that sources can have, and the kinds of files by suffix.

A new format is a name in `FormatName`, a row of `FORMATS`, and a module of the same name in the trainer's
`data/sources/readers/`. Field descriptions, validation and messages follow from the row.
"""

from typing import Literal, NamedTuple

FormatName = Literal["text", "jsonl", "parquet", "arrow", "arrayRecord", "tokens", "synthetic"]


class Format(NamedTuple):
    """What a source of a format reads."""

    content: str
    """What holds a document; the field description shows it in parentheses."""
    pattern: str
    """Default glob of its files in a folder."""
    kinds: tuple[str, ...] = ()
    """Kinds of files that it reads, as values of `BINARY` or `RECORDS`."""
    fields: tuple[str, ...] = ()
    """Fields of a source that only this format and others with the same field may set."""
    is_decompressed: bool = False
    """Whether its files may be compressed as a whole. Formats with compressed parts gain nothing by it."""
    has_ids: bool = False
    """Whether its documents are token ids, and no text."""
    has_lines: bool = False
    """Whether each line of a file is a record, so that several processes can read a file."""
    has_files: bool = True
    """Whether its sources have a place of files."""


RECORD_FIELDS = ("column", "messages", "tools", "prompt", "completion", "chosen", "rejected", "on_bad_record")
"""Fields of a source that describe its records."""

FORMATS: dict[FormatName, Format] = {
    "text": Format("UTF-8 file", "**/*.txt", is_decompressed=True),
    "jsonl": Format(
        "JSON line",
        "**/*.jsonl",
        kinds=("JSON Lines", "JSON"),
        fields=RECORD_FIELDS,
        is_decompressed=True,
        has_lines=True,
    ),
    "parquet": Format("Parquet row", "**/*.parquet", kinds=("Parquet",), fields=RECORD_FIELDS),
    "arrow": Format("Arrow row", "**/*.arrow", kinds=("Arrow",), fields=RECORD_FIELDS),
    "arrayRecord": Format(
        "record",
        "**/*.{array_record,arrayrecord}*",
        kinds=("ArrayRecord",),
        fields=("column", "prompt", "completion", "on_bad_record"),
    ),
    "tokens": Format("id array", "**/*.npy", kinds=("NumPy",), fields=("tokens",), has_ids=True),
    "synthetic": Format("random ids", "", fields=("synthetic",), has_ids=True, has_files=False),
}
"""Formats by value of `format` in a source. The first is the default."""

COMPRESSED = {
    ".gz": "gzip",
    ".bgz": "gzip",
    ".tgz": "a gzip archive",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".bz2": "bzip2",
    ".tbz2": "a bzip2 archive",
    ".xz": "xz",
    ".txz": "an xz archive",
    ".lzma": "LZMA",
    ".lz4": "LZ4",
    ".br": "Brotli",
    ".snappy": "Snappy",
}
"""Suffixes of compressed files; the name without the suffix is that of the content."""

DECOMPRESSED = frozenset({"gzip", "zstd", "bzip2", "xz"})
"""Values of `COMPRESSED` that the trainer decompresses."""

BINARY = {
    ".zip": "a ZIP archive",
    ".7z": "a 7-Zip archive",
    ".rar": "a RAR archive",
    ".tar": "a tar archive",
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".arrow": "Arrow",
    ".feather": "Feather",
    ".orc": "ORC",
    ".avro": "Avro",
    ".tfrecord": "TFRecord",
    ".tfrecords": "TFRecord",
    ".arrayrecord": "ArrayRecord",
    ".array_record": "ArrayRecord",
    ".mds": "Mosaic MDS",
    ".npy": "NumPy",
    ".npz": "NPZ",
    ".h5": "HDF5",
    ".hdf5": "HDF5",
    ".pkl": "a Python pickle",
    ".pickle": "a Python pickle",
    ".pt": "PyTorch",
    ".pth": "PyTorch",
    ".safetensors": "safetensors",
    ".sqlite": "SQLite",
    ".sqlite3": "SQLite",
    ".pdf": "PDF",
    ".doc": "Word",
    ".docx": "Word",
    ".xls": "Excel",
    ".xlsx": "Excel",
    ".epub": "EPUB",
}
"""Suffixes of other files that are not text."""

RECORDS = {
    ".json": "JSON",
    ".jsonl": "JSON Lines",
    ".ndjson": "JSON Lines",
    ".csv": "CSV",
    ".tsv": "TSV",
}
"""Suffixes of text files that contain records: keys, quotes and separators are read as text."""


def find_suffix(name: str) -> str:
    """Return the last suffix of a file name or pattern, in lower case; empty: no suffix."""
    last = name.rsplit("/", 1)[-1]
    _, dot, suffix = last.rpartition(".")
    return f".{suffix.lower()}" if dot else ""


def find_compression(name: str) -> str:
    """Return the compression of a file name or pattern that the trainer decompresses; empty: none."""
    kind = COMPRESSED.get(find_suffix(name), "")
    return kind if kind in DECOMPRESSED else ""


def find_content_name(name: str) -> str:
    """Return a file name or pattern without the suffix of a compression that the trainer decompresses."""
    return name[: -len(find_suffix(name))] if find_compression(name) else name


def find_unsupported(name: str, format_name: FormatName) -> str:
    """Return the kind of a file name or pattern that a format cannot read; empty: none is known."""
    suffix = find_suffix(find_content_name(name) if FORMATS[format_name].is_decompressed else name)
    kind = COMPRESSED.get(suffix) or BINARY.get(suffix) or ""
    return "" if kind in FORMATS[format_name].kinds else kind


def is_of_format(name: str, format_name: FormatName) -> bool:
    """Return whether a file name has a suffix of a format."""
    row = FORMATS[format_name]
    if not row.has_files:
        return False
    suffix = find_suffix(find_content_name(name) if row.is_decompressed else name)
    return suffix == find_suffix(row.pattern) or (BINARY | RECORDS).get(suffix) in row.kinds


def find_records(name: str, format_name: FormatName) -> str:
    """Return the kind of records that a format reads verbatim from a file name or pattern; empty: none."""
    return RECORDS.get(find_suffix(find_content_name(name)), "") if format_name == "text" else ""


def without_compression(name: str, format_name: FormatName) -> str:
    """Return the pattern for the decompressed files of a pattern; empty: the format cannot read them."""
    suffix = find_suffix(name)
    decompressed = name[: -len(suffix)] if suffix in COMPRESSED else ""
    return decompressed if find_suffix(decompressed) and not find_unsupported(decompressed, format_name) else ""


def advise_format(kind: str, fallback: str) -> str:
    """Return how to read files of a kind: the format to set, or the fallback if no format reads them."""
    return next((f"set `format: {name}`" for name, row in FORMATS.items() if kind in row.kinds), fallback)


def formats_with(field: str) -> list[str]:
    """Return the formats that a field of a source belongs to; empty: all."""
    return [name for name, row in FORMATS.items() if field in row.fields]
