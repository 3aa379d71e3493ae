"""Compressed files: their text is that of plain files, and a file that its suffix belies is named."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.trainer.texts import fail, find, grow, index_of
from trainingjob_api.formats import DECOMPRESSED
from trainingjob_trainer.data.sources import file_chunks
from trainingjob_trainer.data.sources.compression import DECOMPRESSORS, zstd
from trainingjob_trainer.data.sources.readers import read_documents

TEXT = b"the cat sat on the mat\n" * 20
COMPRESSORS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": (".gz", gzip.compress),
    "zstd": (".zst", lambda content: zstd.compress(content, options={zstd.CompressionParameter.checksum_flag: 1})),
    "bzip2": (".bz2", bz2.compress),
    "xz": (".xz", lzma.compress),
}


def read(tmp_path: Path, name: str, content: bytes, format_name: str = "text") -> list[bytes]:
    grow(tmp_path, **{name: content})
    return list(read_documents(find(tmp_path, format=format_name, pattern="*").files[0]))


def test_each_declared_compression_has_a_decompressor_and_a_case() -> None:
    assert set(DECOMPRESSORS) == DECOMPRESSED == set(COMPRESSORS)


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_text_and_json_lines_are_decompressed(tmp_path: Path, compression: str) -> None:
    suffix, compress = COMPRESSORS[compression]
    record = json.dumps({"text": "one"}).encode()

    assert read(tmp_path / "text", f"a.txt{suffix}", compress(TEXT)) == [TEXT]
    assert read(tmp_path / "jsonl", f"a.jsonl{suffix.upper()}", compress(record), "jsonl") == [b"one"]


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_each_member_of_a_file_is_read(tmp_path: Path, compression: str) -> None:
    suffix, compress = COMPRESSORS[compression]

    assert read(tmp_path, f"a{suffix}", compress(b"one ") + compress(b"two")) == [b"one two"]


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_members_may_end_anywhere_in_a_chunk(tmp_path: Path, compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_chunks, "CHUNK_BYTES", 7)
    suffix, compress = COMPRESSORS[compression]

    assert read(tmp_path, f"a{suffix}", compress(TEXT) * 3) == [TEXT * 3]


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_a_damaged_member_after_the_first_fails_with_the_name_of_the_file(tmp_path: Path, compression: str) -> None:
    suffix, compress = COMPRESSORS[compression]
    damaged = bytearray(compress(TEXT))
    damaged[0] ^= 0xFF

    error = fail(lambda: read(tmp_path, f"a{suffix}", compress(TEXT) + damaged))

    assert f"must be complete {compression} data, but cannot be decompressed" in str(error)


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz"])
def test_padding_between_members_hides_none_of_them(tmp_path: Path, compression: str) -> None:
    suffix, compress = COMPRESSORS[compression]
    padding = b"\0" * 8

    assert read(tmp_path, f"a{suffix}", compress(b"one ") + padding + compress(b"two") + padding) == [b"one two"]


@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize("size", [8, -8], ids=["most is missing", "the end is missing"])
def test_a_truncated_file_fails_with_its_name(tmp_path: Path, compression: str, size: int) -> None:
    suffix, compress = COMPRESSORS[compression]

    error = fail(lambda: read(tmp_path, f"a.txt{suffix}", compress(TEXT)[:size]))

    assert f"a.txt{suffix} must be complete {compression} data, but cannot be decompressed: " in str(error)
    assert "Copy the file again, or leave it out with `exclude`." in str(error)
    assert error.path == "spec.data.train[0].path"
    assert error.fatal


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_a_damaged_file_fails_with_its_name(tmp_path: Path, compression: str) -> None:
    suffix, compress = COMPRESSORS[compression]
    content = bytearray(compress(TEXT))
    content[len(content) // 2] ^= 0xFF

    assert f"must be complete {compression} data" in str(fail(lambda: read(tmp_path, f"a{suffix}", bytes(content))))


BELIED = {
    "plain text": (TEXT, "must be gzip by its name, but begins with 0x74686520. Correct its suffix, or"),
    "another compression": (bz2.compress(TEXT), "must be gzip by its name, but is bzip2. Correct its suffix, or"),
    "empty": (b"", "must be gzip by its name, but is empty. Correct its suffix, or"),
    "a Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\n", "is a Git LFS pointer"),
}


@pytest.mark.parametrize(("content", "want"), BELIED.values(), ids=BELIED)
def test_first_bytes_must_agree_with_the_suffix(tmp_path: Path, content: bytes, want: str) -> None:
    assert want in str(fail(lambda: read(tmp_path, "a.txt.gz", content)))


def test_compressed_text_is_not_read_under_a_plain_name(tmp_path: Path) -> None:
    assert "It is gzip: decompress it" in str(fail(lambda: read(tmp_path, "a.txt", gzip.compress(TEXT))))


def test_decompressed_bytes_must_be_text(tmp_path: Path) -> None:
    error = fail(lambda: read(tmp_path, "a.txt.gz", gzip.compress(b"PAR1\xff")))

    assert "It is Parquet: set `format: parquet`" in str(error)


def test_a_compressed_copy_gives_the_same_tokens(tmp_path: Path) -> None:
    tokens = set()
    for name, content in {"a.txt": TEXT, "a.txt.gz": gzip.compress(TEXT), "a.txt.xz": lzma.compress(TEXT)}.items():
        folder = tmp_path / name
        grow(folder / "text", **{name: content})
        source = {"name": "text", "path": str(folder / "text"), "pattern": "*"}
        tokens.add(index_of(folder, training__sequenceLength=2, data__train=[source]).train.tokens.tobytes())

    assert tokens == {np.array([*TEXT, 256], np.uint16).tobytes()}
