"""Tokens that were prepared on another machine: a job that mounts the folder finds them, and reads no text."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.hub_server import Hub, use_hub
from tests.support.trainer.texts import fail, grow, make_tokenizer
from tests.support.trainer.tiny import make_config, make_spec
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.data.dataset_writer import HostShare
from trainingjob_trainer.data.preparation.preparation_tracker import ignore_preparation
from trainingjob_trainer.data.token_cache import JobDatasets, prepare_datasets, prepare_folder
from trainingjob_trainer.huggingface.hub_tokenizer import resolve_tokenizer
from trainingjob_trainer.store.opening import open_store

LENGTH = {"training__sequenceLength": 4}


def spec_of(root: Path, **changes: Any) -> TrainingJobSpec:
    (root / "checkpoints").mkdir(parents=True, exist_ok=True)
    held_out = [{"name": "held", "path": str(root / "held"), "everySteps": 1}]
    return make_config(make_spec(root / "checkpoints", root / "text", evaluation=held_out, **LENGTH, **changes)).spec


def train(root: Path) -> JobDatasets:
    return prepare_datasets(open_store(root / "checkpoints"), make_config(spec_of(root)), HostShare())


def test_a_job_finds_the_tokens_by_the_paths_in_its_pods(tmp_path: Path, reads: list[str]) -> None:
    here, pod = tmp_path / "here", tmp_path / "pod"
    grow(here, **{"text/a.txt": "once upon", "text/sub/b.txt": "a time", "held/c.txt": "held out"})
    shutil.copytree(here, pod)  # with the times of the files
    paths = {"spec.data.train[0]": str(pod / "text"), "spec.evaluation[0]": str(pod / "held")}

    spec = spec_of(here)
    report = prepare_folder(open_store(here / "checkpoints"), spec, paths, ignore_preparation).report
    shutil.copytree(here / "checkpoints", pod / "checkpoints")
    by_preparation = list(reads)
    found = train(pod)

    assert sorted(by_preparation) == ["a.txt", "c.txt", "sub/b.txt"]
    assert reads == by_preparation
    assert found.report == report
    assert found.train.num_tokens == 17


def test_other_paths_or_times_are_other_texts(tmp_path: Path, reads: list[str]) -> None:
    grow(tmp_path, **{"text/a.txt": "once upon", "held/c.txt": "held out"})
    paths = {"spec.data.train[0]": "/elsewhere", "spec.evaluation[0]": str(tmp_path / "held")}

    prepare_folder(open_store(tmp_path / "checkpoints"), spec_of(tmp_path), paths, ignore_preparation)
    train(tmp_path)

    assert reads == ["a.txt", "c.txt", "a.txt"]


def test_a_single_file_is_found(tmp_path: Path, reads: list[str]) -> None:
    here, pod = tmp_path / "here", tmp_path / "pod"
    grow(here, text="once upon", held="held out")
    shutil.copytree(here, pod)
    paths = {"spec.data.train[0]": str(pod / "text"), "spec.evaluation[0]": str(pod / "held")}

    prepare_folder(open_store(spec_of(here).checkpoint.uri), spec_of(here), paths, ignore_preparation)
    shutil.copytree(here / "checkpoints", pod / "checkpoints")
    train(pod)

    assert reads == ["text", "held"]


def test_downloads_stay_until_the_job_has_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    source = {"name": "text", "format": "jsonl", "huggingFace": {"repository": "tests/stories"}}
    (tmp_path / "here").mkdir()
    here, pod = (
        make_config(make_spec(tmp_path / name, tmp_path / "text", data__train=[source], **LENGTH))
        for name in ("here", "pod")
    )
    files = {"train.jsonl": b'{"text": "a story"}'}
    with use_hub(Hub("tests/stories", files, kind="datasets"), monkeypatch, tmp_path) as hub:
        prepare_folder(open_store(tmp_path / "here"), here.spec, {}, ignore_preparation)
        shutil.copytree(tmp_path / "here", tmp_path / "pod", copy_function=shutil.copyfile)  # with other times
        count, before = len(hub.requests), list(reads)
        prepare_datasets(open_store(tmp_path / "pod"), pod, HostShare())

        assert (len(hub.requests), reads) == (count, before)
    assert list((tmp_path / "here/huggingface").iterdir())
    assert not (tmp_path / "pod/huggingface/datasets").exists()


def test_a_damaged_folder_is_reported(tmp_path: Path) -> None:
    grow(tmp_path, **{"text/a.txt": "once upon", "held/c.txt": "held out"})
    store, spec = open_store(spec_of(tmp_path).checkpoint.uri), spec_of(tmp_path)
    prepare_folder(store, spec, {}, ignore_preparation)
    for index in (tmp_path / "checkpoints/data").glob("*/index.json"):
        index.write_text("[]")

    error = fail(lambda: prepare_folder(store, spec, {}, ignore_preparation))

    assert (error.reason, error.path) == (FailureReason.STORAGE, "spec.checkpoint.uri")


def test_the_tokenizer_of_a_repository_has_the_same_tokens_on_another_machine(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(tmp_path, **{"text/a.txt": "the cat the cat the cat", "held/c.txt": "the cat the cat the cat"})
    make_tokenizer(tmp_path / "made.json", "the", "cat")
    tokenizer = {"type": "huggingFace", "huggingFace": {"repository": "tests/words"}}
    spec = spec_of(tmp_path, tokenizer=tokenizer)
    files = {"tokenizer.json": (tmp_path / "made.json").read_bytes()}
    with use_hub(Hub("tests/words", files), monkeypatch, tmp_path):
        here, pod = (resolve_tokenizer(spec, open_store(tmp_path / name), is_leader=True) for name in ("here", "pod"))

    assert here.tokenizer.path != pod.tokenizer.path
    for resolved in (here, pod):
        prepare_folder(open_store(tmp_path / "checkpoints"), resolved, {}, ignore_preparation)
    assert reads == ["a.txt", "c.txt"]
