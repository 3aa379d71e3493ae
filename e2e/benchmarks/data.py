"""The data path: tokenizing, readers of formats, batches, and the wait of a training step for its batch.

The text is that of the installed Python packages. Each figure has its reference in the same run: bare `tokenizers`, the
scan of a format's own library, and a gather of NumPy. All are medians of a few rounds in which the two alternate.
"""

import bz2
import gzip
import json
import lzma
import os
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from rich.console import Console
from rich.progress import track
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from e2e.benchmarks import trainer
from e2e.benchmarks.figures import Figure, publish
from trainingjob_api.spec.data import TextSource, TokenArrays
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.data.dataset_writer import HostShare, create_dataset, plan_dataset
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.data.preparation import listed_files, worker_pool
from trainingjob_trainer.data.sample_history import SampleHistory
from trainingjob_trainer.data.sources.readers import array_record, read_documents
from trainingjob_trainer.data.sources.source_search import find_files
from trainingjob_trainer.data.token_dataset import TokenDataset
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.step import StepPrograms
from trainingjob_trainer.store.opening import open_store

TEXT_BYTES, FILES = 32 << 20, 8
VOCABULARY = 8192
ROUNDS, LONG_ROUNDS = 3, 2
PART_BYTES = TEXT_BYTES // FILES
"""Parts of one file, so that two processes share the work."""
LATE_STEP = 1_000_000
MANY_TOKENS = 200_000_000
TOKEN_IDS, DOCUMENT_TOKENS = 32 << 20, 1024
GROUP_SIZE = 1
"""Records of a group of ArrayRecord, as Grain writes them for random access."""
PROCESSES_GOAL, TOKENIZE_GOAL, SCAN_GOAL, GATHER_GOAL = 1.8, 0.9, 0.7, 0.7
WAIT_GOAL, RESUME_GOAL = 0.005, 0.05
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda content: pa.compress(content, "zstd", asbytes=True),
}

type Action = Callable[[], object]


def read_text() -> list[str]:
    """Return documents of the installed packages, `TEXT_BYTES` in all."""
    documents, size = list[str](), 0
    for path in sorted(Path(sysconfig.get_path("purelib")).rglob("*.py")):
        text = path.read_text(errors="replace").replace("\0", "")
        documents.append(text)
        size += len(text.encode())
        if size >= TEXT_BYTES:
            break
    return documents


def measure(
    name: str, console: Console, reader: Action, reference: Action, rounds: int = ROUNDS
) -> tuple[float, float]:
    """Return the median seconds of two actions, which alternate."""
    seconds: dict[str, list[float]] = {"reader": [], "reference": []}
    for number in track(range(rounds), description=name, console=console):
        pair = [("reader", reader), ("reference", reference)]
        for action_name, action in pair if number % 2 == 0 else reversed(pair):
            start = time.perf_counter()
            action()
            seconds[action_name].append(time.perf_counter() - start)
    return statistics.median(seconds["reader"]), statistics.median(seconds["reference"])


def make_spec(folder: Path, **source: Any) -> TrainingJobSpec:
    """Return the benchmark job of the trainer, with this text and tokenizer."""
    values = trainer.SPEC | {
        "data": {"train": [{"name": "text", "path": str(folder / "text"), **source}]},
        "tokenizer": {"type": "tokenizers", "path": str(folder / "tokenizer.json"), "endOfDocument": "</s>"},
    }
    return TrainingJobSpec.model_validate(values)


def tokenize(folder: Path, num_processes: int) -> None:
    """Prepare a dataset from nothing with so many processes."""
    spec = make_spec(folder)
    with (
        tempfile.TemporaryDirectory() as root,
        mock.patch.object(worker_pool, "count_cpus", return_value=num_processes),
        mock.patch.object(listed_files, "PART_BYTES", PART_BYTES),
    ):
        sources = [("spec.data.train[0]", spec.data.train[0])]
        create_dataset(plan_dataset(open_store(root), sources, spec), HostShare())


def measure_tokenizing(folder: Path, documents: list[str], console: Console) -> Iterator[Figure]:
    """Yield the speed of tokenizing, against bare `tokenizers` and against one process."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    single, bare = measure(
        "one process",
        console,
        lambda: tokenize(folder, 1),
        lambda: tokenizer.encode_batch(documents, add_special_tokens=False),
        LONG_ROUNDS,
    )
    yield Figure("tokenizing: one process", bare / single, "of bare tokenizers", TOKENIZE_GOAL)
    yield Figure("tokenizing: one process", TEXT_BYTES / single / 1e6, "MB/s", TEXT_BYTES / bare / 1e6)
    two, single = measure(
        "two processes", console, lambda: tokenize(folder, 2), lambda: tokenize(folder, 1), LONG_ROUNDS
    )
    yield Figure("tokenizing: two processes", single / two, "of one", PROCESSES_GOAL)


def write_formats(folder: Path, documents: list[str]) -> dict[str, tuple[TextSource, Action]]:
    """Write the documents in each format; return their sources, and the scan of each format's library."""
    table = pa.table({"text": documents})
    lines = "".join(f"{json.dumps({'text': document})}\n" for document in documents).encode()
    parquet, arrow, jsonl = (folder / name for name in ("d.parquet", "d.arrow", "d.jsonl"))
    pyarrow.parquet.write_table(table, parquet)
    with pa.ipc.new_stream(arrow, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    jsonl.write_bytes(lines)
    sources: dict[str, tuple[TextSource, Action]] = {
        "parquet": (
            TextSource(name="d", path=str(parquet), format="parquet"),
            lambda: [
                text.encode()
                for batch in pyarrow.parquet.ParquetFile(parquet).iter_batches(columns=["text"])
                for text in batch.column(0).to_pylist()
            ],
        ),
        "arrow": (
            TextSource(name="d", path=str(arrow), format="arrow"),
            lambda: [
                text.encode() for batch in pa.ipc.open_stream(arrow.open("rb")) for text in batch.column(0).to_pylist()
            ],
        ),
        "jsonl": (
            TextSource(name="d", path=str(jsonl), format="jsonl"),
            lambda: [json.loads(line)["text"].encode() for line in jsonl.open("rb")],
        ),
    }
    openers: dict[str, Callable[[Path], Any]] = {
        "gz": gzip.open,
        "bz2": bz2.open,
        "xz": lzma.open,
        "zst": lambda path: pa.input_stream(str(path), compression="zstd"),
    }
    for suffix, compress in COMPRESSIONS.items():
        path = folder / f"d.jsonl.{suffix}"
        path.write_bytes(compress(lines))

        def scan(path: Path = path, suffix: str = suffix) -> list[bytes]:
            with openers[suffix](path) as file:
                return [json.loads(line)["text"].encode() for line in file.read().splitlines()]

        sources[f"jsonl.{suffix}"] = TextSource(name="d", path=str(path), format="jsonl"), scan
    return sources


def write_array_record(folder: Path, documents: list[str]) -> tuple[TextSource, Action]:
    """Write the documents as records of text; return their source, and the scan of the package."""
    path = folder / "d.array_record"
    writer = ArrayRecordWriter(str(path), f"group_size:{GROUP_SIZE}")
    for document in documents:
        writer.write(document.encode())
    writer.close()

    def scan() -> list[bytes]:
        with closing(ArrayRecordReader(str(path), array_record.OPTIONS)) as reader:
            return [reader.read() for _ in range(reader.num_records())]

    return TextSource(name="d", path=str(path), format="arrayRecord"), scan


def write_tokens(folder: Path) -> dict[str, tuple[TextSource, Action]]:
    """Write token ids as one document and as many; return their sources, and the scans of NumPy."""
    path = folder / "d.bin"
    ids = np.random.default_rng(0).integers(1, VOCABULARY, TOKEN_IDS, dtype=np.uint16)
    ids[DOCUMENT_TOKENS - 1 :: DOCUMENT_TOKENS] = 0
    ids.tofile(path)
    dtype: dict[str, Any] = {"dtype": "uint16"}

    def load() -> np.ndarray:
        return np.fromfile(path, np.uint16).astype(np.uint32)

    def split() -> list[bytes]:
        loaded = load()
        return [document.tobytes() for document in np.split(loaded, np.flatnonzero(loaded == 0) + 1) if len(document)]

    source = TextSource(name="d", path=str(path), format="tokens", tokens=TokenArrays(**dtype))
    documents = source.model_copy(update={"tokens": TokenArrays(**dtype, end_of_document=0)})
    return {"tokens": (source, lambda: load().tobytes()), "tokens: documents": (documents, split)}


def measure_formats(folder: Path, documents: list[str], console: Console) -> Iterator[Figure]:
    """Yield the speed of each reader, as a share of the scan by the format's library."""
    sources = write_formats(folder, documents) | write_tokens(folder)
    sources["arrayRecord"] = write_array_record(folder, documents)
    for name, (source, scan) in sources.items():
        (file,) = find_files(source, "spec.data.train[0]").files
        reader_seconds, library_seconds = measure(name, console, lambda file=file: list(read_documents(file)), scan)  # type: ignore[misc]
        yield Figure(f"reading: {name}", library_seconds / reader_seconds, "of its library", SCAN_GOAL)


def measure_batches(console: Console) -> Iterator[Figure]:
    """Yield the speed of batches against a gather, the wait of a step, and the time of a late batch."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, MANY_TOKENS, dtype=np.uint16)
    text = TokenDataset("random", tokens, trainer.LENGTH)
    steps = StepPrograms(TrainingJobSpec.model_validate(trainer.SPEC), build_mesh(jax.devices()[:1], trainer.SINGLE))
    rows = np.random.default_rng(1).integers(0, text.num_sequences, 4096)
    places = np.arange(trainer.LENGTH + 1)

    def gather() -> tuple[np.ndarray, np.ndarray]:
        taken = tokens[rows[:, None] * trainer.LENGTH + places].astype(np.int32)
        return taken[:, :-1], taken[:, 1:]

    batch_seconds, gather_seconds = measure("batches", console, lambda: text.sequences(rows), gather)
    yield Figure("batches", gather_seconds / batch_seconds, "of a NumPy gather", GATHER_GOAL)

    loader = BatchLoader(trainer.SINGLE, steps.batch_sharding, trainer.BATCH)
    train, _, _ = trainer.make_steps(TrainingJobSpec.model_validate(trainer.SPEC))
    train(0).block_until_ready()
    step = iter(range(1, 1000))
    wait, compute = measure(
        "data wait",
        console,
        lambda: [loader.train_batch(text, next(step), 0) for _ in range(trainer.BLOCK_STEPS)],
        lambda: trainer.time_block(train),
    )
    yield Figure("data wait", wait / compute, "of a step", WAIT_GOAL)

    def resume() -> None:
        history = SampleHistory(((1, 2), (500_000, 4)), ((5, 9),))
        late = BatchLoader(trainer.SINGLE, steps.batch_sharding, trainer.BATCH, history)
        late.train_batch(text, LATE_STEP, 0)

    late, first = measure("resume", console, resume, lambda: loader.train_batch(text, 1, 0))
    yield Figure("batch of step 1,000,000", late, "s", RESUME_GOAL)
    yield Figure("batch of step 1,000,000", late / first, "of the first step's", 1.0)


def main() -> None:
    """Measure the data path."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    console = Console()
    documents = read_text()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trained = trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(documents[: len(documents) // 8], trained)
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "text").mkdir()
        for number in range(FILES):
            part = documents[number::FILES]
            (folder / f"text/{number}.txt").write_text("\n".join(part))
        whole = [(folder / f"text/{number}.txt").read_text() for number in range(FILES)]
        figures = [
            *measure_batches(console),
            *measure_formats(folder, documents, console),
            *measure_tokenizing(folder, whole, console),
        ]
    publish("data", figures, console)


if __name__ == "__main__":
    main()
