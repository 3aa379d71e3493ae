"""Files of any size: documents do not depend on the chunks in which they are read, and memory is bounded."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.trainer.texts import fail, find, grow, measure_peak
from tests.trainer.data.sources.test_compression import COMPRESSORS
from trainingjob_trainer.data.sources import file_chunks
from trainingjob_trainer.data.sources.compression import zstd
from trainingjob_trainer.data.sources.readers import read_documents
from trainingjob_trainer.data.sources.source_files import SourceFile

PLAIN: dict[str, tuple[str, Callable[[bytes], bytes]]] = {"plain": ("", bytes)}
WRITERS = PLAIN | COMPRESSORS
TEXTS = ["one", "zwölf", "日本語" * 2000, "🙂", "two\nlines", "last"]
RECORDS = "\r\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in TEXTS)
MIB = 1 << 20


def write(
    folder: Path, content: bytes, writer: str = "plain", format_name: str = "jsonl", **options: str
) -> SourceFile:
    suffix, compress = WRITERS[writer]
    grow(folder, **{f"a.{format_name}{suffix}": compress(content)})
    return find(folder, format=format_name, pattern="*", **options).files[0]


@pytest.mark.parametrize("chunk", [1, 2, 7, 5000, MIB])
@pytest.mark.parametrize("writer", WRITERS)
def test_documents_do_not_depend_on_chunks(
    tmp_path: Path, writer: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_chunks, "CHUNK_BYTES", chunk)
    content = b"\xef\xbb\xbf\n" + RECORDS.encode()

    for ending in (b"", b"\n", b"\n \n\n"):
        documents = read_documents(write(tmp_path, content + ending, writer))
        assert [document.decode() for document in documents] == TEXTS


@pytest.mark.parametrize("chunk", [1, 4097, MIB])
@pytest.mark.parametrize(
    ("bad", "place", "why"),
    [
        (b"\xff", 5005, "byte 5005 is 0xff (invalid start byte)"),
        (b"\xe6\x97\n", 5005, "byte 5005 is 0xe6 (invalid continuation byte)"),
        (b"\xe6\x97", 5005, "byte 5005 is 0xe6 (unexpected end of data)"),
        (b"\0", 5005, "byte 5005 is NUL"),
    ],
)
def test_an_error_names_the_place_in_the_file(
    tmp_path: Path, chunk: int, bad: bytes, place: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_chunks, "CHUNK_BYTES", chunk)
    content = b'{"text": "x"}\n' * 357 + b"\n" * (place - 357 * 14) + bad

    assert f"is not UTF-8 text: {why}. Repair the file" in str(
        fail(lambda: list(read_documents(write(tmp_path, content))))
    )


def test_a_bad_line_of_another_chunk_is_named_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_chunks, "CHUNK_BYTES", 100)
    content = b'{"text": "x"}\n' * 1000

    error = fail(lambda: list(read_documents(write(tmp_path, content + b"{}\n" + content))))

    assert "line 1001 has no field `text`" in str(error)


@pytest.mark.thorough
@pytest.mark.parametrize("on_bad_record", ["fail", "skip"])
@pytest.mark.parametrize("writer", WRITERS)
def test_json_lines_take_the_memory_of_few_chunks(tmp_path: Path, writer: str, on_bad_record: str) -> None:
    """48 MiB are read with a peak below 16 MiB, of which the window of xz is 8."""
    record = json.dumps({"text": "x" * (64 << 10)}).encode() + b"\n"
    file = write(tmp_path, record * 768, writer, onBadRecord=on_bad_record)
    num_bytes, peak = measure_peak(lambda: sum(len(document) for document in read_documents(file)))

    assert num_bytes == 768 * (64 << 10)
    assert peak < 16 * MIB


def test_bytes_after_the_last_frame_are_damage(tmp_path: Path) -> None:
    grow(tmp_path, **{"a.jsonl.zst": zstd.compress(RECORDS.encode()) + b"damaged frame"})
    file = find(tmp_path, format="jsonl", pattern="*").files[0]

    assert "must be complete zstd data" in str(fail(lambda: list(read_documents(file))))
