"""File formats by suffix: formats that cannot be read as text, and record formats whose markup would be trained on."""

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
    ".mds": "Mosaic MDS",
    ".npy": "NumPy",
    ".npz": "NumPy",
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


def find_unsupported(name: str) -> str:
    """Return the format of a file name or pattern that cannot be read as text; empty: none is known."""
    suffix = find_suffix(name)
    return COMPRESSED.get(suffix) or BINARY.get(suffix) or ""


def find_records(name: str) -> str:
    """Return the record format of a file name or pattern; empty: none."""
    return RECORDS.get(find_suffix(name), "")


def without_compression(name: str) -> str:
    """Return the pattern for the decompressed files of a pattern; empty: they are not text."""
    suffix = find_suffix(name)
    plain = name[: -len(suffix)] if suffix in COMPRESSED else ""
    return plain if find_suffix(plain) and not find_unsupported(plain) else ""
