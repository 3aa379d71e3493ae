"""Downloads from a hub on loopback: once, resumed, with a token, and deleted when they are not needed any more."""

import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from tests.support.trainer.crew import Crew
from tests.support.trainer.hub_server import COMMIT, Clock, Hub, use_hub
from tests.support.trainer.huggingface import Fixture
from tests.support.trainer.object_store import ObjectStore
from tests.support.trainer.tiny import make_config, make_world
from tests.trainer.huggingface.test_run_with_weights import make
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.checkpoint import AdapterSource, HuggingFaceSource, InitializeFrom
from trainingjob_trainer.huggingface.hub_download import (
    ADAPTER,
    WEIGHTS,
    delete_downloads,
    download_files,
    download_sources,
    locate_files,
    name_source,
    read_commit,
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
    return {entry.name for entry in own.list_folder(WEIGHTS.folder) if not entry.is_folder}


def test_the_files_that_a_job_needs_are_downloaded_once(hub: Hub, own: Store) -> None:
    download_files(WEIGHTS, SOURCE, own, is_leader=True)
    requests = len(hub.requests)
    download_files(WEIGHTS, SOURCE, own, is_leader=True)

    assert len(hub.requests) == requests
    assert downloaded(own) == {"config.json", "generation_config.json", "model.safetensors"}
    assert read_commit(WEIGHTS, own) == COMMIT
    assert open_weights(open_store(locate_files(WEIGHTS, SOURCE.path, own))).tensors == Fixture("llama").weights.tensors


def test_a_bucket_gets_the_files_one_by_one_and_keeps_those_of_an_interrupted_download(hub: Hub) -> None:
    own = ObjectStore()
    download_files(WEIGHTS, SOURCE, own, is_leader=True)
    complete = dict(own.objects)
    own.delete(WEIGHTS.record)
    own.delete(f"{WEIGHTS.folder}/config.json")
    hub.requests.clear()

    download_files(WEIGHTS, SOURCE, own, is_leader=True)

    assert own.objects == complete
    assert own.objects[f"{WEIGHTS.folder}/model.safetensors"] == hub.files["model.safetensors"]
    assert downloaded(own) == {"config.json", "generation_config.json", "model.safetensors"}
    assert not any("model.safetensors" in request for request in map(str, hub.requests))
    delete_downloads(own)
    assert own.objects == {}


def test_a_bucket_does_not_mix_the_files_of_two_commits(hub: Hub) -> None:
    own = ObjectStore()
    own.write(f"{WEIGHTS.record}.started", [b'{"commit": "of another revision"}'])
    own.write(f"{WEIGHTS.folder}/config.json", [b"{}"])
    own.write(f"{WEIGHTS.folder}/model-00001-of-00002.safetensors", [b"old"])

    download_files(WEIGHTS, SOURCE, own, is_leader=True)

    assert downloaded(own) == {"config.json", "generation_config.json", "model.safetensors"}
    assert own.objects[f"{WEIGHTS.folder}/config.json"] == hub.files["config.json"]


def test_another_revision_is_downloaded_again(hub: Hub, own: Store) -> None:
    download_files(WEIGHTS, SOURCE, own, is_leader=True)
    requests = len(hub.requests)

    download_files(WEIGHTS, SOURCE.model_copy(update={"revision": COMMIT}), own, is_leader=True)

    assert len(hub.requests) > requests
    assert json.loads(own.read(WEIGHTS.record, 1000))["revision"] == COMMIT


def test_other_processes_wait_for_the_record(hub: Hub, own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def download_meanwhile(seconds: float) -> None:
        download_files(WEIGHTS, SOURCE, own, is_leader=True)

    monkeypatch.setattr("trainingjob_trainer.huggingface.hub_folder.time", Clock(download_meanwhile))

    download_files(WEIGHTS, SOURCE, own, is_leader=False)

    assert read_commit(WEIGHTS, own) == COMMIT


@pytest.mark.thorough
def test_a_broken_download_is_resumed(hub: Hub, own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.broken_after = 10_000

    download_files(WEIGHTS, SOURCE, own, is_leader=True)

    assert hub.ranges == ["bytes=10000-"]
    assert own.size(f"{WEIGHTS.folder}/model.safetensors") == len(hub.files["model.safetensors"])


def test_a_gated_repository_needs_the_token(hub: Hub, own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_secret"

    with pytest.raises(TrainingError, match="the hub answers with status 401 for tests/tiny-llama") as caught:
        download_files(WEIGHTS, SOURCE, own, is_leader=True)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    download_files(WEIGHTS, SOURCE, own, is_leader=True)

    assert "spec.checkpoint.initializeFrom.huggingFace.token" in str(caught.value)
    assert (caught.value.reason, caught.value.fatal) == (FailureReason.CONFIG, True)
    assert (caught.value.path, caught.value.value) == (FIELD, REPOSITORY)
    assert read_commit(WEIGHTS, own) == COMMIT


def test_an_unknown_repository_is_fatal(hub: Hub, own: Store) -> None:
    with pytest.raises(TrainingError, match=r"status 404 for tests/other at revision v2\. Check both names") as caught:
        download_files(WEIGHTS, HuggingFaceSource(repository="tests/other", revision="v2"), own, is_leader=True)

    assert caught.value.fatal


def test_a_hub_that_is_down_is_tried_again(hub: Hub, own: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.status = 500
    with pytest.raises(TrainingError, match=r"failed: status 500\. The next attempt resumes it") as failing:
        download_files(WEIGHTS, SOURCE, own, is_leader=True)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(TrainingError, match="Pods must reach the hub, or the mirror in the variable") as away:
        download_files(WEIGHTS, SOURCE, own, is_leader=True)

    for error in (failing.value, away.value):
        assert (error.reason, error.fatal) == (FailureReason.NETWORK, False)
    assert read_commit(WEIGHTS, own) == ""


def test_a_folder_that_cannot_be_written_is_a_storage_error(hub: Hub, own: Store, tmp_path: Path) -> None:
    (tmp_path / "run/huggingface").mkdir(parents=True)
    (tmp_path / "run/huggingface/weights").write_text("a file")

    with pytest.raises(TrainingError) as caught:
        download_files(WEIGHTS, SOURCE, own, is_leader=True)

    assert (caught.value.reason, caught.value.path) == (FailureReason.STORAGE, "spec.checkpoint.uri")


def test_the_download_is_deleted_with_its_record(hub: Hub, own: Store) -> None:
    own.write("huggingface/config.json", [b"{}"])
    download_files(WEIGHTS, SOURCE, own, is_leader=True)

    delete_downloads(own)
    delete_downloads(own)

    assert [entry.name for entry in own.list_folder("huggingface")] == ["config.json"]


def test_weights_and_adapters_have_separate_folders_and_records(hub: Hub, own: Store) -> None:
    hub.files |= {"adapter_config.json": b"{}", "adapter_model.safetensors": b"adapters"}
    adapter = AdapterSource(repository=REPOSITORY, revision=COMMIT)

    download_sources(InitializeFrom(hugging_face=SOURCE, adapter=adapter), own, is_leader=True)

    assert downloaded(own) == {"config.json", "generation_config.json", "model.safetensors"}
    assert {entry.name for entry in own.list_folder(ADAPTER.folder) if not entry.is_folder} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert json.loads(own.read(ADAPTER.record, 1000)) == {
        "repository": REPOSITORY,
        "revision": COMMIT,
        "commit": COMMIT,
    }
    assert name_source(ADAPTER, adapter, own) == f"{REPOSITORY} at commit {COMMIT[:12]}"
    delete_downloads(own)
    assert own.list_folder("huggingface") == []


def test_folders_are_not_downloaded(hub: Hub, own: Store) -> None:
    source = InitializeFrom(
        hugging_face=HuggingFaceSource(path="/models/llama"), adapter=AdapterSource(path="/models/adapter")
    )

    download_sources(source, own, is_leader=True)

    assert (hub.requests, own.list_folder()) == ([], [])


def test_a_private_adapter_names_the_variable_of_its_token(hub: Hub, own: Store) -> None:
    hub.token = "hf_secret"

    with pytest.raises(TrainingError, match=r"needs HF_TOKEN in spec\.runtime\.env") as caught:
        download_files(ADAPTER, AdapterSource(repository=REPOSITORY), own, is_leader=True)

    assert caught.value.path == "spec.checkpoint.initializeFrom.adapter.repository"


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
    assert (root / WEIGHTS.folder / "model.safetensors").exists()
    exported = (root.parent / "exported/model.safetensors").read_bytes()
    assert open_weights(open_store(root.parent / "exported")).tensors.keys() == Fixture("llama").weights.tensors.keys()
    more = make_config(
        config.spec.model_copy(update={"training": config.spec.training.model_copy(update={"steps": 2})}).model_dump(
            mode="json", by_alias=True
        )
    )
    (trainer,) = crew.start(more, make_world(2, 1).model_copy(update={"committed": 1}), programs)
    assert trainer.wait_for_end() == 0, trainer.tell_logs()
    assert not (root / WEIGHTS.folder).exists()
    assert (root.parent / "exported/model.safetensors").read_bytes() == exported
