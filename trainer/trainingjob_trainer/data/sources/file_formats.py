"""File formats, detected by the first bytes: text, or a named format that must be converted first."""

from collections.abc import Iterator

from trainingjob_api.formats import advise_format

POINTERS: tuple[tuple[bytes, bytes, str], ...] = (
    (b"version https://git-lfs.github.com/spec/", b"\noid ", "a Git LFS pointer, not the text: run `git lfs pull`"),
    (b"version https://hawser.github.com/spec/", b"\noid ", "a Git LFS pointer, not the text: run `git lfs pull`"),
    (b"/annex/objects/", b"", "a git-annex pointer, not the text: run `git annex get`"),
    (b"# xet version ", b"", "a Xet pointer, not the text: download the file itself"),
)
"""Beginning of a pointer file, other content that it must have, and its description."""
MAX_POINTER = 1024

ICONV = "convert it with `iconv -f {} -t UTF-8`"
DECOMPRESS = "decompress it"
CONVERT = "convert it to UTF-8 text"
ENCODINGS: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"\x1f\x8b", "gzip", DECOMPRESS),
    (0, b"\x28\xb5\x2f\xfd", "zstd", DECOMPRESS),
    (0, b"BZh", "bzip2", DECOMPRESS),
    (0, b"\xfd7zXZ\x00", "xz", DECOMPRESS),
    (0, b"\x5d\x00\x00", "LZMA", DECOMPRESS),
    (0, b"\x04\x22\x4d\x18", "LZ4", DECOMPRESS),
    (0, b"\xff\x06\x00\x00sNaPpY", "Snappy", DECOMPRESS),
    (0, b"PK\x03\x04", "a ZIP archive, or a format made of one", CONVERT),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", CONVERT),
    (0, b"Rar!\x1a\x07", "a RAR archive", CONVERT),
    (257, b"ustar", "a tar archive", CONVERT),
    (0, b"PAR1", "Parquet", CONVERT),
    (0, b"ARROW1", "Arrow", CONVERT),
    (0, b"\xff\xff\xff\xff", "Arrow", CONVERT),
    (0, b"FEA1", "Feather", CONVERT),
    (0, b"ORC", "ORC", CONVERT),
    (0, b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f", "ArrayRecord", CONVERT),
    (0, b"Obj\x01", "Avro", CONVERT),
    (0, b"\x93NUMPY", "NumPy", CONVERT),
    (0, b"\x89HDF\r\n\x1a\n", "HDF5", CONVERT),
    (0, b"SQLite format 3\x00", "SQLite", CONVERT),
    (0, b"\x80\x04\x95", "a Python pickle", CONVERT),
    (0, b"\x80\x05\x95", "a Python pickle", CONVERT),
    (0, b"%PDF-", "PDF", CONVERT),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document", CONVERT),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image", CONVERT),
    (0, b"\xff\xd8\xff", "a JPEG image", CONVERT),
    (0, b"GIF8", "a GIF image", CONVERT),
    (0, b"\x7fELF", "an ELF program", CONVERT),
    (0, b"GGUF", "GGUF", CONVERT),
)
"""Offset, bytes, name and remedy of each format. Used only for files that are not text."""
SNIFFED_BYTES = 4096
NUM_SHOWN_BYTES = 4


def describe_pointer_file(content: bytes) -> str:
    """Return the description of a pointer file, which stands for a file that was not fetched; empty: it is none."""
    if len(content) > MAX_POINTER:
        return ""
    return next((what for begin, rest, what in POINTERS if content.startswith(begin) and rest in content), "")


def describe_binary_format(content: bytes) -> str:
    """Return the format of bytes that are not UTF-8 text, and the remedy; empty: unknown."""
    for mark, name in ENCODINGS:
        if content.startswith(mark):
            return f"{name} text: {ICONV.format(name)}"
    for name, advice in _match_magic(content):
        return f"{name}: {advise_format(name, advice)}"
    wide = _detect_wide_encoding(content[:SNIFFED_BYTES])
    return f"{wide} text without a byte order mark: {ICONV.format(wide)}" if wide else ""


def find_format_name(content: bytes) -> str:
    """Return the name of the format whose first bytes a file has; empty: unknown."""
    return next((name for name, _ in _match_magic(content)), "")


def describe_begin(content: bytes) -> str:
    """Return what a file is, by its first bytes, as the end of a sentence about it."""
    if found := find_format_name(content):
        return f"is {found}"
    return f"begins with 0x{content[:NUM_SHOWN_BYTES].hex()}" if content else "is empty"


def _match_magic(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the name and the remedy of the formats whose first bytes a file has."""
    return ((name, advice) for place, magic, name, advice in MAGIC if content.startswith(magic, place))


def _detect_wide_encoding(head: bytes) -> str:
    """Return the encoding of text whose high bytes are mostly NUL; empty: there is none."""
    share = [head[place::4].count(0) / max(len(head[place::4]), 1) for place in range(4)]
    empty = [part > 0.5 for part in share]
    encodings: dict[tuple[bool, ...], str] = {
        (False, True, True, True): "UTF-32LE",
        (True, True, True, False): "UTF-32BE",
        (False, True, False, True): "UTF-16LE",
        (True, False, True, False): "UTF-16BE",
    }
    return encodings.get(tuple(empty), "")
