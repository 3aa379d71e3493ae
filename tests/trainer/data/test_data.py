"""Text to token datasets: the files, the token ids, and the errors of unusable ones."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from tests.support.trainer.object_store import ObjectStore
from tests.support.trainer.texts import dataset_folder, grow, index_of
from tests.support.trainer.tiny import make_config, make_spec
from tests.trainer.checkpoint.test_foreign import NOT_FILES, stretch
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.data import TextSource
from trainingjob_trainer.data.dataset_writer import HostShare
from trainingjob_trainer.data.sample_history import SampleHistory
from trainingjob_trainer.data.sources.source_search import find_files
from trainingjob_trainer.data.token_cache import prepare_datasets
from trainingjob_trainer.data.token_dataset import TokenDataset
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.opening import open_store

FIELD = "spec.data.train[0]"


def find(path: Path | str, **options: Any) -> list[str]:
    return [file.name for file in find_files(TextSource(name="text", path=str(path), **options), FIELD).files]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a.txt", "b.md", "deep/c.txt", "deep/more/d.txt", "other/e.txt"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "tree"


FINDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "text files at any depth by default": ({}, ["a.txt", "deep/c.txt", "deep/more/d.txt", "other/e.txt"]),
    "a pattern": ({"pattern": "*.md"}, ["b.md"]),
    "a folder left out with all below it": ({"exclude": ("deep",)}, ["a.txt", "other/e.txt"]),
    "the same, written with stars": ({"exclude": ("deep/**",)}, ["a.txt", "other/e.txt"]),
    "files left out": ({"exclude": ("**/c.txt", "a.*")}, ["deep/more/d.txt", "other/e.txt"]),
}


@pytest.mark.parametrize(("options", "want"), FINDS.values(), ids=FINDS.keys())
def test_finds_files(tree: Path, options: dict[str, Any], want: list[str]) -> None:
    assert find(tree, **options) == want


def test_a_source_may_be_one_file(tree: Path) -> None:
    assert find(tree / "b.md") == ["b.md"]


def test_standard_library_excludes_installed_packages() -> None:
    names = find("python:", pattern="**/*.py", exclude=("test",))

    assert "json/decoder.py" in names
    assert not [name for name in names if "site-packages" in name or name.startswith("test/")]


def prepare_with(tmp_path: Path, **changes: Any) -> TokenDataset:
    root = tmp_path / "checkpoints"
    root.mkdir(exist_ok=True)
    text = tmp_path / "text"
    text.mkdir(exist_ok=True)
    return prepare_datasets(open_store(root), make_config(make_spec(root, text, **changes)), HostShare()).train


def write(tmp_path: Path, name: str, content: bytes) -> Path:
    path = tmp_path / "text" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def test_bytes_are_ids_and_each_document_is_closed(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", b"ab")
    write(tmp_path, "b.txt", "é".encode())
    write(tmp_path, "empty.txt", b"")

    assert prepare_with(tmp_path, training__sequenceLength=2).tokens.tolist() == [97, 98, 256, 0xC3, 0xA9, 256]


def test_rows_overlap_by_one_token(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", bytes(range(65, 75)))

    index = prepare_with(tmp_path, training__sequenceLength=4)

    assert index.num_sequences == 2
    sequences = index.sequences(np.array([1, 0]))
    assert sequences.tokens.tolist() == [[69, 70, 71, 72], [65, 66, 67, 68]]
    assert sequences.targets.tolist() == [[70, 71, 72, 73], [66, 67, 68, 69]]
    assert sequences.loss_weights.tolist() == [[1] * 4] * 2
    assert (sequences.segment_ids, sequences.positions) == (None, None)


def make_tokenizer(path: Path) -> None:
    vocab = {word: place for place, word in enumerate(["<end>", "<unknown>", "the", "cat", "sat", "on", "mat"])}
    model = tokenizers.models.WordLevel(vocab, unk_token="<unknown>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(path))


def test_a_tokenizer_file_gives_its_ids(tmp_path: Path) -> None:
    make_tokenizer(tmp_path / "tokenizer.json")
    write(tmp_path, "a.txt", b"the cat sat on the dog")

    index = prepare_with(
        tmp_path,
        tokenizer={"type": "tokenizers", "path": str(tmp_path / "tokenizer.json"), "endOfDocument": "<end>"},
        training__sequenceLength=2,
    )

    assert index.tokens.tolist() == [2, 3, 4, 5, 2, 1, 0]


def test_large_vocabularies_take_wider_ids(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", b"text enough for one row")

    assert prepare_with(tmp_path, model__vocabSize=70_000).tokens.dtype == np.uint32


def test_a_restart_reads_no_text_again(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", b"text enough for one row")
    before = prepare_with(tmp_path)
    path.write_bytes(b"another text, which the running job must not see")

    after = prepare_with(tmp_path)

    assert (after.dataset_hash, after.tokens.tolist()) == (before.dataset_hash, before.tokens.tolist())


CHANGES: dict[str, dict[str, Any]] = {
    "another sequence length": {"training__sequenceLength": 8},
    "another pattern": {"data__train": [{"name": "text", "path": "TEXT", "pattern": "*.md"}]},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
def test_other_rows_have_another_identity(tmp_path: Path, changes: dict[str, Any]) -> None:
    write(tmp_path, "a.txt", b"text enough for one row")
    write(tmp_path, "a.md", b"text enough for one row, too")
    changes = json.loads(json.dumps(changes).replace("TEXT", str(tmp_path / "text")))

    assert prepare_with(tmp_path).dataset_hash != prepare_with(tmp_path, **changes).dataset_hash


def test_equal_text_is_shared_between_jobs(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", b"text enough for one row")
    before = prepare_with(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere", "a.txt", b"text enough for one row")

    spec = make_spec(tmp_path / "checkpoints", tmp_path / "elsewhere" / "text")

    assert (
        prepare_datasets(
            open_store(tmp_path / "checkpoints"), make_config(spec, uid="other"), HostShare()
        ).train.dataset_hash
        == before.dataset_hash
    )


def test_the_others_wait_for_the_one_that_leads(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", b"text enough for one row")
    root = tmp_path / "checkpoints"
    root.mkdir()
    config = make_config(make_spec(root, tmp_path / "text"))
    found: list[str] = []
    follower = threading.Thread(
        target=lambda: found.append(prepare_datasets(open_store(root), config, None).train.dataset_hash)
    )
    follower.start()

    led = prepare_datasets(open_store(root), config, HostShare()).train.dataset_hash
    follower.join(timeout=30)

    assert found == [led]


def test_evaluations_have_indexes_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", b"text enough for one row")
    held_out = write(tmp_path, "held.md", b"held-out text, also enough for a row")
    root = tmp_path / "checkpoints"
    root.mkdir()
    evaluation = [{"name": "held", "path": str(held_out), "everySteps": 5}]

    indexes = prepare_datasets(
        open_store(root), make_config(make_spec(root, tmp_path / "text", evaluation=evaluation)), HostShare()
    )

    assert bytes(indexes.evaluations["held"].tokens[:8].tolist()) == b"held-out"


BAD: dict[str, tuple[dict[str, Any], FailureReason, str, str]] = {
    "a path that is not there": (
        {"data__train": [{"name": "text", "path": "/nowhere/at/all"}]},
        FailureReason.DATA,
        "spec.data.train[0].path",
        "/nowhere/at/all is not there on this host",
    ),
    "no file that matches": (
        {"data__train": [{"name": "text", "path": "TEXT", "pattern": "*.nothing"}]},
        FailureReason.DATA,
        "spec.data.train[0].pattern",
        "matches `*.nothing`",
    ),
    "text too short for a row": (
        {"training__sequenceLength": 1000},
        FailureReason.DATA,
        "spec.data.train[0].path",
        "1 file gives 24 tokens, and one row takes 1,001. Add text.",
    ),
    "bytes that the vocabulary does not cover": (
        {"model__vocabSize": 256},
        FailureReason.DATA,
        "spec.model.vocabSize",
        "must be at least 257",
    ),
    "a tokenizer that the vocabulary does not cover": (
        {"model__vocabSize": 4, "tokenizer": {"type": "tokenizers", "path": "TOKENIZER"}},
        FailureReason.DATA,
        "spec.model.vocabSize",
        "must be at least 7",
    ),
    "a token that the tokenizer lacks": (
        {"tokenizer": {"type": "tokenizers", "path": "TOKENIZER", "endOfDocument": "</s>"}},
        FailureReason.DATA,
        "spec.tokenizer.endOfDocument",
        "Its special tokens: <end>.",
    ),
    "no tokenizer": (
        {"tokenizer": {"type": "tokenizers", "path": "/nowhere/tokenizer.json"}},
        FailureReason.DATA,
        "spec.tokenizer.path",
        "No such file",
    ),
    "a tokenizer that is none": (
        {"tokenizer": {"type": "tokenizers", "path": "TEXT/a.txt"}},
        FailureReason.DATA,
        "spec.tokenizer.path",
        "is not a tokenizer.json",
    ),
    "a binary file": (
        {"data__train": [{"name": "text", "path": "TEXT", "pattern": "*.bin"}]},
        FailureReason.DATA,
        "spec.data.train[0].path",
        "picture.bin is not UTF-8 text: byte 3 is 0xff",
    ),
}


@pytest.mark.parametrize(("changes", "reason", "path", "words"), BAD.values(), ids=BAD.keys())
def test_invalid_data_is_reported_with_its_position(
    tmp_path: Path, changes: dict[str, Any], reason: FailureReason, path: str, words: str
) -> None:
    write(tmp_path, "a.txt", b"text enough for one row")
    write(tmp_path, "picture.bin", b"abc\xff\xfe")
    make_tokenizer(tmp_path / "tokenizer.json")
    places = json.dumps(changes).replace("TEXT", str(tmp_path / "text"))
    changes = json.loads(places.replace("TOKENIZER", str(tmp_path / "tokenizer.json")))

    with pytest.raises(TrainingError) as caught:
        prepare_with(tmp_path, **changes)

    assert (caught.value.reason, caught.value.path, caught.value.fatal) == (reason, path, True)
    assert words in str(caught.value)


def test_truncated_token_cache_is_rejected(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", b"text enough for one row")
    prepare_with(tmp_path)
    tokens = dataset_folder(tmp_path) / "tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-2])

    with pytest.raises(TrainingError, match="has 46 bytes and should have 48"):
        prepare_with(tmp_path)


HOSTILE: dict[str, Callable[[Path], object]] = {
    **NOT_FILES,
    "a list": lambda path: path.write_text("[]"),
    "deep": lambda path: path.write_text("[" * 100_000),
    "too large": lambda path: stretch(path, 1 << 40),
    "another folder's name": lambda path: path.write_text('{"": "../../x", "dtype": "object", "numTokens": 1}'),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("name", ["job", "account", "index.json", "tokens.bin"])
def test_hostile_file_in_the_token_cache_is_reported(tmp_path: Path, name: str, make: Callable[[Path], object]) -> None:
    write(tmp_path, "a.txt", b"text enough for one row")
    dataset_hash = prepare_with(tmp_path).dataset_hash
    folder = dataset_folder(tmp_path)
    (account,) = folder.parent.glob("*.account.json")
    job = account.with_name(account.name.replace(".account", ""))
    path = {"job": job, "account": account}.get(name, folder / name)
    path.unlink()
    make(path)
    if name == "account":
        assert prepare_with(tmp_path).dataset_hash == dataset_hash, "it is only reported"
        return

    with pytest.raises(TrainingError) as caught:
        prepare_with(tmp_path)

    assert (caught.value.reason, caught.value.path) == (FailureReason.STORAGE, "spec.checkpoint.uri")


def test_a_store_of_objects_keeps_the_tokens(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", b"text enough for one row")
    want, store = prepare_with(tmp_path), ObjectStore()
    config = make_config(make_spec(tmp_path, tmp_path / "text"))

    made = prepare_datasets(store, config, HostShare())
    (tmp_path / "text/a.txt").unlink()
    found = prepare_datasets(store, config, HostShare())

    assert [one.train.tokens.tolist() for one in (made, found)] == [want.tokens.tolist()] * 2
    assert made.report == found.report


def test_a_link_in_the_place_of_unfinished_tokens_is_not_written_through(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", b"text enough for one row")
    prepare_with(tmp_path)
    folder = dataset_folder(tmp_path)
    for path in (*folder.parent.glob("*.json"), *folder.iterdir()):
        path.unlink()
    precious = tmp_path / "precious"
    precious.write_text("stays")
    (folder / f".tokens.bin.{os.uname().nodename}.{os.getpid()}").symlink_to(precious)

    prepare_with(tmp_path)

    assert precious.read_text() == "stays"


def test_text_without_shuffling_comes_in_its_order_in_each_epoch(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.txt": "a" * 400})
    changes = {"training__sequenceLength": 4}
    shuffled, ordered = (index_of(tmp_path, data__shuffle=value, **changes).train for value in (True, False))
    samples = np.array([0, 1, 99, 100, 205])

    assert ordered.choose_sequences(samples, 3, SampleHistory(((1, 1),))).tolist() == [0, 1, 99, 0, 5]
    assert shuffled.choose_sequences(samples, 3, SampleHistory(((1, 1),))).tolist() != [0, 1, 99, 0, 5]
    assert (ordered.folder, ordered.dataset_hash == shuffled.dataset_hash) == (shuffled.folder, False)
