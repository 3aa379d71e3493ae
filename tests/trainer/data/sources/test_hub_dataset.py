"""Data sets of the hub: the files of a split are downloaded once, read, and deleted."""

import errno
import io
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import huggingface_hub.constants
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.trainer.hub_server import COMMIT, Clock, Hub, use_hub
from tests.support.trainer.object_servers import SCHEMES, ObjectServers, new_root
from tests.support.trainer.texts import fail, index_of
from tests.support.trainer.tiny import make_config, make_spec
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.data.dataset_writer import HostShare
from trainingjob_trainer.data.sources.hub_dataset import FOLDER
from trainingjob_trainer.data.token_cache import JobDatasets, prepare_datasets
from trainingjob_trainer.huggingface.hub_client import HubRepository
from trainingjob_trainer.store.opening import open_store

REPOSITORY = "tests/stories"
MODULE = "trainingjob_trainer.data.sources.hub_dataset"


def write_table(*texts: str) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table({"text": list(texts)}), file)
    return file.getvalue()


FILES = {
    "README.md": b"---\nlicense: mit\n---\n",
    "data/train-00000-of-00002.parquet": write_table("one", "two"),
    "data/train-00001-of-00002.parquet": write_table("three"),
    "data/validation-00000-of-00001.parquet": write_table("held-out text"),
    "extra/[notes].jsonl": json.dumps({"text": "a note"}).encode(),
}


BUCKETS = [pytest.param(scheme, marks=pytest.mark.thorough) for scheme in SCHEMES]


@pytest.mark.parametrize("scheme", BUCKETS)
def test_a_job_in_a_bucket_reads_the_same_text(
    hub: "Hub", object_servers: ObjectServers, scheme: str, tmp_path: Path
) -> None:
    spec = make_spec(tmp_path / "checkpoints", tmp_path / "text", training__sequenceLength=2, data__train=source())
    with object_servers.environment(scheme):
        store = open_store(new_root(scheme))
        made = prepare_datasets(store, make_config(spec), HostShare())

        assert text_of(made) == b"one|two|three|"
        assert store.list_files(FOLDER) == []


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with use_hub(Hub(REPOSITORY, dict(FILES), kind="datasets"), monkeypatch, tmp_path) as used:
        yield used


def source(repository: str = REPOSITORY, **more: Any) -> list[dict[str, Any]]:
    options = {name: more.pop(name) for name in ("revision", "configuration", "split") if name in more}
    return [{"name": "text", "format": "parquet", "huggingFace": {"repository": repository, **options}, **more}]


def prepare(tmp_path: Path, **more: Any) -> JobDatasets:
    return index_of(tmp_path, training__sequenceLength=2, data__train=source(**more))


def text_of(made: JobDatasets) -> bytes:
    return bytes(one if one < 256 else ord("|") for one in made.train.tokens.tolist())


def requested(hub: Hub) -> set[str]:
    return {path.partition(f"/resolve/{COMMIT}/")[2] for _, path, _ in hub.requests if "/resolve/" in path}


def test_the_files_of_a_split_are_read_once_and_deleted(hub: Hub, tmp_path: Path) -> None:
    made = prepare(tmp_path)
    count = len(hub.requests)
    again = prepare(tmp_path)

    assert text_of(made) == b"one|two|three|"
    assert made.report.sources[0].commit == COMMIT
    assert (made.report.sources[0].files, made.report.sources[0].skipped) == (2, ())
    assert requested(hub) == {"README.md", *list(FILES)[1:3]}
    assert (len(hub.requests), again.train.dataset_hash) == (count, made.train.dataset_hash)
    assert not (tmp_path / "checkpoints" / FOLDER).exists()


def test_a_split_and_a_pattern_choose_files(hub: Hub, tmp_path: Path) -> None:
    held_out = prepare(tmp_path / "a", split="validation", revision=COMMIT)
    notes = prepare(tmp_path / "b", format="jsonl", pattern="extra/*.jsonl")

    assert text_of(held_out) == b"held-out text|"
    assert text_of(notes) == b"a note|"


def test_an_excluded_file_is_not_downloaded(hub: Hub, tmp_path: Path) -> None:
    made = prepare(tmp_path, exclude=["**/train-00000*"])

    assert text_of(made) == b"three|"
    assert requested(hub) == {"README.md", "data/train-00001-of-00002.parquet"}


def test_files_have_the_same_identity_as_on_a_path(hub: Hub, tmp_path: Path) -> None:
    hub.files = {"train.jsonl": b'{"text": "a story"}'}
    (tmp_path / "text").mkdir()
    (tmp_path / "text/train.jsonl").write_bytes(hub.files["train.jsonl"])
    local = [{"name": "text", "format": "jsonl", "path": str(tmp_path / "text")}]

    hashes = {
        index_of(tmp_path / str(number), training__sequenceLength=2, data__train=one).train.dataset_hash
        for number, one in enumerate((local, source(format="jsonl")))
    }

    assert len(hashes) == 1


@pytest.mark.thorough
def test_a_broken_download_is_resumed(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 100)
    hub.broken_after = 300

    assert text_of(prepare(tmp_path)) == b"one|two|three|"
    assert "bytes=300-" in hub.ranges


def test_a_download_without_files_is_not_complete(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download = HubRepository.download_files

    def run_out(self: HubRepository, commit: str, target: str, names: list[str]) -> None:
        if names != ["README.md"]:
            raise OSError(errno.ENOSPC, "no space")
        download(self, commit, target, names)

    with monkeypatch.context() as patch:
        patch.setattr(HubRepository, "download_files", run_out)
        assert "No space left" in str(fail(lambda: prepare(tmp_path)))

    assert text_of(prepare(tmp_path)) == b"one|two|three|"


def test_a_commit_is_kept_over_attempts(hub: Hub, tmp_path: Path) -> None:
    files, hub.files = hub.files, FILES | {"data/train-00001-of-00002.parquet": b"PAR1 cut off"}
    assert "must be complete Parquet data" in str(fail(lambda: prepare(tmp_path)))
    count = len(hub.requests)

    error = fail(lambda: prepare(tmp_path))

    assert (error.path, len(hub.requests)) == ("spec.data.train[0].huggingFace.repository", count)
    assert "train-00001-of-00002.parquet" in str(error)
    hub.files = files


def test_other_hosts_wait_for_the_leader(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "checkpoints"
    root.mkdir()
    config = make_config(make_spec(root, tmp_path / "text", training__sequenceLength=2, data__train=source()))
    leader = Thread(target=prepare_datasets, args=(open_store(root), config, HostShare(0, 2)))
    monkeypatch.setattr(f"{MODULE}.time", Clock(lambda seconds: leader.ident or leader.start()))

    follower = prepare_datasets(open_store(root), config, HostShare(1, 2))
    leader.join(30)

    assert text_of(follower) == b"one|two|three|"


BAD: dict[str, tuple[dict[str, Any], FailureReason, str, str]] = {
    "an unknown data set": (
        {"repository": "tests/other"},
        FailureReason.CONFIG,
        "huggingFace.repository",
        "status 404",
    ),
    "no such split": (
        {"split": "test"},
        FailureReason.CONFIG,
        "huggingFace.split",
        "tests/stories has no split test. It has train, validation. Set another, or choose files with `pattern`.",
    ),
    "no such configuration": (
        {"configuration": "en"},
        FailureReason.CONFIG,
        "huggingFace.configuration",
        "has no configuration en. It has none.",
    ),
    "no file that matches": ({"pattern": "*.csv"}, FailureReason.DATA, "pattern", "It has 5 files: README.md, data/"),
    "another format": (
        {"format": "arrow"},
        FailureReason.DATA,
        "format",
        "has no files of `format: arrow`. Nearest legal values: jsonl, parquet.",
    ),
    "all files excluded": ({"exclude": ["data"]}, FailureReason.DATA, "format", "has no files of `format: parquet`"),
    "a mislabelled file": (
        {"format": "jsonl", "pattern": "data/train-00001*"},
        FailureReason.DATA,
        "huggingFace.repository",
        "is not UTF-8 text",
    ),
}


@pytest.mark.parametrize(("options", "reason", "field", "words"), BAD.values(), ids=BAD)
def test_a_data_set_without_the_files_is_reported(
    hub: Hub, tmp_path: Path, options: dict[str, Any], reason: FailureReason, field: str, words: str
) -> None:
    error = fail(lambda: prepare(tmp_path, **options))

    assert words in str(error)
    assert (error.path, error.reason, error.fatal) == (f"spec.data.train[0].{field}", reason, True)


def test_files_of_formats_that_no_reader_has_are_named(hub: Hub, tmp_path: Path) -> None:
    for name, words in (("a.orc", "It has ORC files: convert them"), ("a", "It has README.md, a.")):
        hub.files = {"README.md": b"", name: b"ORC"}
        assert words in str(fail(lambda: prepare(tmp_path)))


def test_a_gated_data_set_needs_the_token(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_secret"
    error = fail(lambda: prepare(tmp_path))
    monkeypatch.setenv("HF_TOKEN", hub.token)

    assert "needs spec.data.token" in str(error)
    assert text_of(prepare(tmp_path)) == b"one|two|three|"


def test_a_hub_that_is_down_is_tried_again(hub: Hub, tmp_path: Path) -> None:
    hub.status = 500

    error = fail(lambda: prepare(tmp_path))

    assert (error.reason, error.fatal) == (FailureReason.NETWORK, False)
