"""Downloads from a hub on loopback: once, resumed, with a token, and deleted when they are not needed any more."""

import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from tests.support.trainer.crew import Crew
from tests.support.trainer.hub_server import COMMIT, Clock, Hub, use_hub
from tests.support.trainer.huggingface import Fixture
from tests.support.trainer.tiny import make_config, make_world
from tests.trainer.huggingface.test_run_with_weights import make
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.checkpoint import HuggingFaceSource
from trainingjob_trainer.huggingface.hub_download import (
    RECORD,
    WEIGHTS,
    delete_download,
    download_weights,
    read_commit,
    weights_location,
)
from trainingjob_trainer.huggingface.weights_folder import open_weights
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

REPOSITORY = "tests/tiny-llama"
SOURCE = HuggingFaceSource(repository=REPOSITORY)
FIELD = "spec.checkpoint.initializeFrom.huggingFace.repository"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    files = {path.name: path.read_bytes() for path in Fixture("llama").folder.iterdir() if path.suffix != ".npz"}
    hub = Hub(REPOSITORY, files | {"consolidated.safetensors": b"twice", "README.md": b"long"})
    with use_hub(hub, monkeypatch, tmp_path) as used:
        yield used


@pytest.fixture
def own(tmp_path: Path) -> Store:
    return open_store(tmp_path / "run")


def downloaded(own: Store) -> set[str]:
    return {entry.name for entry in own.list_folder(WEIGHTS) if not entry.is_folder}


def test_the_files_that_a_job_needs_are_downloaded_once(hub: Hub, own: Store) -> None:
    download_weights(SOURCE, own, is_leader=True)
    requests = len(hub.requests)
    download_weights(SOURCE, own, is_leader=True)

    assert len(hub.requests) == requests
    assert downloaded(own) == {"config.json", "generation_config.json", "model.safetensors"}
    assert read_commit(own) == COMMIT
    assert open_weights(open_store(weights_location(SOURCE, own))).tensors == Fixture("llama").weights.tensors


def test_another_revision_is_downloaded_again(hub: Hub, own: Store) -> None:
    download_weights(SOURCE, own, is_leader=True)
    requests = len(hub.requests)

    download_weights(SOURCE.model_copy(update={"revision": COMMIT}), own, is_leader=True)

    assert len(hub.requests) > requests
    assert json.loads(own.read(RECORD, 1000))["revision"] == COMMIT


def test_other_processes_wait_for_the_record(hub: Hub, own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def download_meanwhile(seconds: float) -> None:
        download_weights(SOURCE, own, is_leader=True)

    monkeypatch.setattr("trainingjob_trainer.huggingface.hub_folder.time", Clock(download_meanwhile))

    download_weights(SOURCE, own, is_leader=False)

    assert read_commit(own) == COMMIT


def test_a_broken_download_is_resumed(hub: Hub, own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.broken_after = 10_000

    download_weights(SOURCE, own, is_leader=True)

    assert hub.ranges == ["bytes=10000-"]
    assert own.size(f"{WEIGHTS}/model.safetensors") == len(hub.files["model.safetensors"])


def test_a_gated_repository_needs_the_token(hub: Hub, own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_secret"

    with pytest.raises(TrainingError, match="the hub answers with status 401 for tests/tiny-llama") as caught:
        download_weights(SOURCE, own, is_leader=True)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    download_weights(SOURCE, own, is_leader=True)

    assert "spec.checkpoint.initializeFrom.huggingFace.token" in str(caught.value)
    assert (caught.value.reason, caught.value.fatal) == (FailureReason.CONFIG, True)
    assert (caught.value.path, caught.value.value) == (FIELD, REPOSITORY)
    assert read_commit(own) == COMMIT


def test_an_unknown_repository_is_fatal(hub: Hub, own: Store) -> None:
    with pytest.raises(TrainingError, match=r"status 404 for tests/other at revision v2\. Check both names") as caught:
        download_weights(HuggingFaceSource(repository="tests/other", revision="v2"), own, is_leader=True)

    assert caught.value.fatal


def test_a_hub_that_is_down_is_tried_again(hub: Hub, own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.status = 500
    with pytest.raises(TrainingError, match=r"failed: status 500\. The next attempt resumes it") as failing:
        download_weights(SOURCE, own, is_leader=True)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(TrainingError, match="Pods must reach the hub, or the mirror in the variable") as away:
        download_weights(SOURCE, own, is_leader=True)

    for error in (failing.value, away.value):
        assert (error.reason, error.fatal) == (FailureReason.NETWORK, False)
    assert read_commit(own) == ""


def test_a_folder_that_cannot_be_written_is_a_storage_error(hub: Hub, own: Store, tmp_path: Path) -> None:
    (tmp_path / "run/huggingface").mkdir(parents=True)
    (tmp_path / "run/huggingface/weights").write_text("a file")

    with pytest.raises(TrainingError) as caught:
        download_weights(SOURCE, own, is_leader=True)

    assert (caught.value.reason, caught.value.path) == (FailureReason.STORAGE, "spec.checkpoint.uri")


def test_the_download_is_deleted_with_its_record(hub: Hub, own: Store) -> None:
    own.write("huggingface/config.json", [b"{}"])
    download_weights(SOURCE, own, is_leader=True)

    delete_download(own)
    delete_download(own)

    assert [entry.name for entry in own.list_folder("huggingface")] == ["config.json"]


@pytest.mark.slow
def test_a_job_starts_from_a_repository_and_deletes_it_when_it_resumes(
    hub: Hub, crew: Crew, tmp_path: Path, text: Path, programs: Path
) -> None:
    root = tmp_path / "shared/checkpoints"
    config = make(root, text, Fixture("llama"), checkpoint__initializeFrom={"huggingFace": {"repository": REPOSITORY}})

    trainers = crew.start(config, make_world(1, 2), programs)
    for trainer in trainers:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()

    (source,) = {event.initialized_from for event in trainers[0].events if event.initialized_from}
    assert source == f"21 tensors of {REPOSITORY} at commit {COMMIT[:12]}"
    assert (root / WEIGHTS / "model.safetensors").exists()
    exported = (root.parent / "exported/model.safetensors").read_bytes()
    assert open_weights(open_store(root.parent / "exported")).tensors.keys() == Fixture("llama").weights.tensors.keys()
    more = make_config(
        config.spec.model_copy(update={"training": config.spec.training.model_copy(update={"steps": 2})}).model_dump(
            mode="json", by_alias=True
        )
    )
    (trainer,) = crew.start(more, make_world(2, 1).model_copy(update={"committed": 1}), programs)
    assert trainer.wait_for_end() == 0, trainer.tell_logs()
    assert not (root / WEIGHTS).exists()
    assert (root.parent / "exported/model.safetensors").read_bytes() == exported
