"""A file of text is one document: bytes are tokenized in pieces, and other tokenizers need the memory for all of it."""

import codecs
from pathlib import Path

import pytest

from tests.support.trainer.texts import fail, find, grow, index_of, make_tokenizer, measure_peak, use
from trainingjob_trainer.data.sources import file_chunks
from trainingjob_trainer.data.sources.readers import read_documents, text
from trainingjob_trainer.data.sources.readers.text import read_pieces

MIB = 1 << 20
TEXT = "zwölf 日本語 🙂, last" * 400


@pytest.mark.parametrize("chunk", [1, 2, 3, 300, MIB])
def test_pieces_are_whole_characters_of_the_document(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_chunks, "CHUNK_BYTES", chunk)
    grow(tmp_path, **{"a.txt": codecs.BOM_UTF8 + TEXT.encode()})
    file = find(tmp_path).files[0]

    pieces = list(read_pieces(file))

    assert "".join(piece.decode() for piece in pieces) == TEXT
    assert (len(pieces) > 1) == (chunk < MIB)
    assert list(read_documents(file)) == [TEXT.encode()]


@pytest.mark.parametrize("chunk", [1, 300, MIB])
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"\xff", "is 0xff (invalid start byte)"),
        (b"\xe6\x97,", "is 0xe6 (invalid continuation byte)"),
        (b"\xe6\x97", "is 0xe6 (unexpected end of data)"),
        (b"\x97" * 9, "is 0x97 (invalid start byte)"),
        (b"\0", "is NUL"),
    ],
)
def test_an_error_names_the_place_in_the_file(
    tmp_path: Path, chunk: int, bad: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_chunks, "CHUNK_BYTES", chunk)
    grow(tmp_path, **{"a.txt": TEXT.encode() + bad})

    assert f"byte {len(TEXT.encode())} {why}" in str(fail(lambda: list(read_documents(find(tmp_path).files[0]))))


@pytest.mark.parametrize("packing", [{}, {"data__packing": {"type": "bestFit"}}], ids=["concat", "bestFit"])
def test_a_dataset_of_bytes_does_not_depend_on_the_pieces(
    tmp_path: Path, packing: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(tmp_path / "text", **{"a.txt": TEXT, "b.txt": "", "c.txt": codecs.BOM_UTF8, "d.txt": "end"})
    whole = index_of(tmp_path, **packing)
    (tmp_path / "checkpoints").rename(tmp_path / "before")
    monkeypatch.setattr(file_chunks, "CHUNK_BYTES", 7)

    pieces = index_of(tmp_path, **packing)

    assert pieces.train.tokens.tolist() == [*TEXT.encode(), 256, *b"end", 256]
    assert (pieces.train.dataset_hash, pieces.report) == (whole.train.dataset_hash, whole.report)
    assert pieces.train.num_sequences == whole.train.num_sequences


def test_bytes_of_a_long_text_take_the_memory_of_few_chunks(tmp_path: Path) -> None:
    """32 MiB are read with a peak below 8 MiB."""
    grow(tmp_path, **{"a.txt": b"x" * 32 * MIB})
    file = find(tmp_path).files[0]
    num_bytes, peak = measure_peak(lambda: sum(len(piece) for piece in read_pieces(file)))

    assert num_bytes == 32 * MIB
    assert peak < 8 * MIB


def test_a_document_that_needs_more_memory_than_there_is_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(tmp_path / "text", **{"a.txt": "the cat sat " * 90})
    monkeypatch.setattr(text, "CHECKED_BYTES", 1000)
    tokenizer = tmp_path / "tokenizer.json"
    make_tokenizer(tokenizer, "the", "cat", "sat", "<unk>", "<end>")
    assert index_of(tmp_path, **use(tokenizer)).train.num_tokens > 90
    (tmp_path / "checkpoints").rename(tmp_path / "before")
    monkeypatch.setattr(text, "available_memory", lambda: 64 * 1000)

    error = fail(lambda: index_of(tmp_path, **use(tokenizer)))

    assert error.path == "spec.data.train[0].path"
    assert "a.txt has more than 0 MB of text in one document" in str(error)
    assert "Split the file" in str(error)
    assert index_of(tmp_path).train.num_tokens > 1000, "bytes take no document as a whole"
