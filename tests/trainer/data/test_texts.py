"""Files that are not text are rejected with their format; text is read verbatim."""

import bz2
import codecs
import gzip
import io
import lzma
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.trainer.texts import fail, find, grow, index_of
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.data.preparation.listed_files import list_file
from trainingjob_trainer.data.sources.readers import read_documents
from trainingjob_trainer.data.sources.source_files import SourceFile

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
    "Parquet": (b"PAR1\x15\x04\x15\x00\x15PAR1", "It is Parquet: set `format: parquet`"),
    "Arrow": (b"ARROW1\x00\x00\xff\xff\xff\xff", "It is Arrow: set `format: arrow`"),
    "an Arrow stream": (b"\xff\xff\xff\xff\x10\x00", "It is Arrow: set `format: arrow`"),
    "NumPy": (saved(), "It is NumPy: set `format: tokens`"),
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
def test_file_that_is_not_text_is_rejected_with_its_format(tmp_path: Path, content: bytes, words: str) -> None:
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

    assert list(read_documents(find(tmp_path).files[0])) == [content]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.txt": codecs.BOM_UTF8 + b"abc", "b.txt": codecs.BOM_UTF8})

    made = index_of(tmp_path, training__sequenceLength=2)

    assert made.train.tokens.tolist() == [97, 98, 99, 256]
    assert [(one.reason, one.count) for one in made.report.sources[0].skipped] == [("empty", 1)]


def test_file_that_changes_during_the_read_is_rejected_and_retried(tmp_path: Path) -> None:
    grow(tmp_path, **{"a.txt": "before"})
    file = find(tmp_path).files[0]
    before = list_file(file)
    before.check_unchanged()
    file.path.write_text("behind")

    error = fail(before.check_unchanged)

    assert (error.fatal, error.path) == (False, "spec.data.train[0].path")
    assert "a.txt changed while it was read" in str(error)


def test_token_cache_is_not_written_for_a_file_that_changes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(tmp_path / "text", **{"a.txt": "before"})
    read = SourceFile.read_chunks

    def write_after(file: SourceFile) -> Iterator[bytes]:
        yield from read(file)
        file.path.write_text("behind")

    monkeypatch.setattr(SourceFile, "read_chunks", write_after)

    error = fail(lambda: index_of(tmp_path, training__sequenceLength=2))

    assert "changed while it was read" in str(error)
    assert not list(tmp_path.glob("checkpoints/data/*/index.json"))
