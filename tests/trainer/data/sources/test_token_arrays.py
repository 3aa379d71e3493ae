"""Token ids of NumPy and raw files: documents, hashes, and files that hold something else."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.trainer.texts import fail, find, grow, index_of
from trainingjob_trainer.data.sources import source_files
from trainingjob_trainer.data.sources.readers import tokens as reader
from trainingjob_trainer.data.token_cache import JobDatasets

IDS = [5, 6, 7, 0, 8, 0, 9, 300]


def save(ids: Any, dtype: str = "uint16") -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(ids, dtype))
    return file.getvalue()


def raw(ids: Any, dtype: str = "<u2") -> bytes:
    return np.array(ids, dtype).tobytes()


def with_header(ids: list[int], magic: int, version: int, dtype: str) -> bytes:
    return np.array([magic, version, len(ids), *[0] * 253], "<i4").tobytes() + raw(ids, dtype)


def prepare(tmp_path: Path, content: bytes, name: str = "a.npy", **options: Any) -> JobDatasets:
    packing = options.pop("packing", None)
    grow(tmp_path / "text", **{name: content})
    pattern = {} if name.endswith(".npy") else {"pattern": f"*.{name.rpartition('.')[2]}"}
    source = {"name": "text", "format": "tokens", "path": str(tmp_path / "text"), **pattern}
    sections = {"data__packing": packing} if packing else {}
    changes = {"data__train": [source | ({"tokens": options} if options else {})], **sections}
    return index_of(tmp_path, training__sequenceLength=2, model__vocabSize=512, **changes)


FILES: dict[str, tuple[bytes, str, dict[str, str]]] = {
    **{f"NumPy {dtype}": (save(IDS, dtype), "a.npy", {}) for dtype in ("uint16", "uint32", "int32", ">u2", ">i4")},
    "NumPy with its dtype": (save(IDS), "a.npy", {"dtype": "uint16"}),
    "raw uint16": (raw(IDS), "a.bin", {"dtype": "uint16"}),
    "raw int32": (raw(IDS, "<i4"), "a.ids", {"dtype": "int32"}),
    "a header": (with_header(IDS, 20240520, 1, "<u2"), "a.bin", {}),
    "another header": (with_header(IDS, 20240801, 7, "<u4"), "a.bin", {"dtype": "uint32"}),
}


@pytest.mark.parametrize(("content", "name", "options"), FILES.values(), ids=FILES)
def test_ids_are_read_without_a_tokenizer(tmp_path: Path, content: bytes, name: str, options: dict[str, str]) -> None:
    made = prepare(tmp_path, content, name, **options)

    source = made.report.sources[0]
    assert made.train.tokens.tolist() == IDS
    assert (source.files, source.documents, source.tokens, source.characters) == (1, 1, len(IDS), 0)


def test_chunks_change_nothing_but_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends, packing = {"endOfDocument": 0}, {"isolateDocuments": True}
    want = prepare(tmp_path / "a", save(IDS), packing=packing, **ends).train
    monkeypatch.setattr(reader, "CHUNK_TOKENS", 3)

    found = prepare(tmp_path / "b", save(IDS), packing=packing, **ends)
    whole = prepare(tmp_path / "c", save(IDS))

    assert found.train.dataset_hash == want.dataset_hash
    assert (found.report.sources[0].documents, whole.report.sources[0].documents) == (3, 1)
    assert whole.train.tokens.tolist() == IDS


def test_isolated_documents_end_with_their_id(tmp_path: Path) -> None:
    made = prepare(tmp_path, save(IDS), packing={"isolateDocuments": True}, endOfDocument=0)

    batch = made.train.sequences(np.arange(made.train.num_sequences))
    assert batch.segment_ids is not None
    assert made.report.sources[0].documents == 3
    assert batch.tokens.reshape(-1)[:3].tolist() == [5, 6, 7]
    assert batch.segment_ids.reshape(-1)[:4].tolist() == [1, 1, 1, 2]


def test_other_ends_are_another_dataset(tmp_path: Path) -> None:
    hashes = {prepare(tmp_path / str(end), save(IDS), endOfDocument=end).train.dataset_hash for end in (0, 7)}

    assert len(hashes) == 2


def test_an_array_without_ids_is_an_empty_document(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"b.npy": save([]), "c.npy": save(IDS)})

    made = prepare(tmp_path, save(IDS))

    assert made.train.tokens.tolist() == IDS * 2
    assert [(one.reason, one.count, one.example) for one in made.report.sources[0].skipped] == [("empty", 1, "b.npy")]


NPY, TOKENS, DTYPE = "spec.data.train[0].path", "spec.data.train[0].tokens", "spec.data.train[0].tokens.dtype"
BAD: dict[str, tuple[bytes, str, dict[str, Any], str, str]] = {
    "an id outside of the vocabulary": (
        save([5, 600, 700]),
        "a.npy",
        {},
        "spec.model.vocabSize",
        "must be at least 601: a.npy has the id 600 at index 1",
    ),
    "a negative id": (save([5, -1], "int32"), "a.npy", {}, NPY, "has the id -1 at index 1, and ids must be at least 0"),
    "truncated": (save(IDS)[:-2], "a.npy", {}, NPY, "is truncated: it has 142 bytes and should have 144"),
    "too long": (save(IDS) + b"\0", "a.npy", {}, NPY, "is damaged: it has 145 bytes and should have 144"),
    "two dimensions": (save([[1, 2], [3, 4]]), "a.npy", {}, NPY, "but has the shape [2, 2] of uint16"),
    "a scalar": (save(1), "a.npy", {}, NPY, "but has the shape [] of uint16"),
    "64 bits": (save(IDS, "int64"), "a.npy", {}, NPY, "but has the shape [8] of int64. Save `array.reshape"),
    "numbers with fractions": (save(IDS, "float32"), "a.npy", {}, NPY, "of float32"),
    "objects": (save(["a", "b"], "object"), "a.npy", {}, NPY, "of object"),
    "an empty file": (b"", "a.npy", {}, NPY, "must be a NumPy file, but is empty"),
    "text": (b"the cat sat", "a.npy", {}, NPY, "must be a NumPy file, but begins with 0x74686520"),
    "Parquet": (b"PAR1\x15\x04", "a.npy", {}, NPY, "must be a NumPy file, but is Parquet"),
    "a cut header": (save(IDS)[:40], "a.npy", {}, NPY, "must have the header of a NumPy file"),
    "a broken header": (save(IDS)[:10] + b"[" * 118, "a.npy", {}, NPY, "must have the header of a NumPy file"),
    "another dtype": (save(IDS), "a.npy", {"dtype": "int32"}, DTYPE, "has uint16 by its header, but `tokens.dtype`"),
    "no dtype": (raw(IDS), "a.bin", {}, DTYPE, "has ids without a header, so `tokens.dtype` must be set"),
    "NumPy by another name": (save(IDS), "a.bin", {"dtype": "uint16"}, NPY, "is a NumPy file: name it `.npy`"),
    "an odd number of bytes": (raw(IDS)[:-1], "a.bin", {"dtype": "uint16"}, NPY, "its 15 bytes are no multiple of 2"),
    "a header with another dtype": (
        with_header(IDS, 20240520, 1, "<u2"),
        "a.bin",
        {"dtype": "int32"},
        DTYPE,
        "has uint16 by its header",
    ),
    "truncated after a header": (with_header(IDS, 20240520, 1, "<u2")[:-2], "a.bin", {}, NPY, "is truncated"),
}


@pytest.mark.parametrize(("content", "name", "options", "path", "words"), BAD.values(), ids=BAD)
def test_a_file_without_ids_is_reported(
    tmp_path: Path, content: bytes, name: str, options: dict[str, Any], path: str, words: str
) -> None:
    error = fail(lambda: prepare(tmp_path, content, name, **options))

    assert words in str(error)
    assert "a." in str(error)
    assert (error.path, error.fatal) == (path, True)


def test_a_document_without_end_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_DOCUMENT_TOKENS", 7)

    error = fail(lambda: prepare(tmp_path, save(IDS), endOfDocument=1))

    assert "has a document of more than 7 tokens, so 1 is probably not the id that ends documents" in str(error)
    assert error.path == f"{TOKENS}.endOfDocument"


def test_a_smaller_vocabulary_is_checked_although_tokens_are_there(tmp_path: Path) -> None:
    prepare(tmp_path, save(IDS))
    source = {"name": "text", "format": "tokens", "path": str(tmp_path / "text")}

    error = fail(lambda: index_of(tmp_path, training__sequenceLength=2, model__vocabSize=300, data__train=[source]))

    assert "must be at least 301" in str(error)


def draw(tmp_path: Path, vocab_size: int = 512, **options: int) -> JobDatasets:
    source = {"name": "random", "format": "synthetic", "synthetic": options}
    return index_of(tmp_path, training__sequenceLength=2, model__vocabSize=vocab_size, data__train=[source])


def test_random_tokens_are_equally_frequent_and_the_same_again(tmp_path: Path) -> None:
    made = draw(tmp_path / "a", vocab_size=300, tokens=300_000)
    again = draw(tmp_path / "b", vocab_size=300, tokens=300_000)
    counts = np.bincount(made.train.tokens, minlength=300)

    assert (counts.min() > 800, counts.max() < 1200, len(counts)) == (True, True, 300)
    assert again.train.dataset_hash == made.train.dataset_hash
    assert (made.report.sources[0].documents, made.report.sources[0].tokens) == (293, 300_000)
    assert "text" not in " ".join(made.report.warnings)


def test_random_tokens_depend_on_seed_number_and_vocabulary(tmp_path: Path) -> None:
    root = tmp_path / "one"
    made = [
        draw(root, tokens=2000),
        draw(root, tokens=2000, seed=1),
        draw(root, tokens=3000),
        draw(root, tokens=2000, vocab_size=300),
    ]

    assert len({one.train.dataset_hash for one in made}) == 4
    assert made[2].train.tokens[:2000].tolist() == made[0].train.tokens.tolist()
    assert made[0].train.tokens[:4].tolist() == [348, 45, 462, 335], "those of each version of NumPy"


def test_too_few_random_tokens_are_reported_at_their_field(tmp_path: Path) -> None:
    error = fail(lambda: draw(tmp_path, tokens=2))

    assert (error.path, "1 file gives 2 tokens" in str(error)) == ("spec.data.train[0].synthetic", True)


class CutFile(io.BytesIO):
    """A file of which the third read has some bytes only, after two that look at its beginning."""

    def __init__(self, content: bytes, num_bytes: int) -> None:
        super().__init__(content)
        self._num_bytes = num_bytes
        self._reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self._reads += 1
        return super().read(size)[: self._num_bytes if self._reads == 3 else None]


@pytest.mark.parametrize("num_bytes", [3, 4], ids=["within an id", "after an id"])
def test_an_array_that_is_cut_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    grow(tmp_path, **{"a.bin": raw(IDS)})
    (file,) = find(tmp_path, format="tokens", pattern="*", tokens={"dtype": "uint16"}).files
    monkeypatch.setattr(source_files, "open_linked", lambda _: CutFile(raw(IDS), num_bytes))

    error = fail(lambda: list(reader.read_documents(file)))

    assert ("changed while it was read" in str(error), error.fatal) == (True, False)
