"""The tokenizer of a repository of the hub: downloaded once, without the weights, and used by jobs and preparations."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.trainer.crew import Crew
from tests.support.trainer.hub_server import COMMIT, Hub, use_hub
from tests.support.trainer.texts import fail, grow, make_tokenizer
from tests.support.trainer.tiny import make_config, make_spec, make_world
from tests.trainer.huggingface.test_tokenizer_files import WORDS
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.data.tokenizers import DocumentEncoder
from trainingjob_trainer.huggingface.hub_tokenizer import resolve_tokenizer
from trainingjob_trainer.huggingface.tokenizer_files import read_chat_template
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

REPOSITORY = "tests/words"
FIELD = "spec.tokenizer.huggingFace.repository"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    make_tokenizer(tmp_path / "made.json", *WORDS, special=("<s>", "</s>"))
    files = {
        "tokenizer.json": (tmp_path / "made.json").read_bytes(),
        "tokenizer_config.json": b'{"eos_token": "</s>"}',
        "chat_template.jinja": b"{{ messages }}",
        "model.safetensors": b"many bytes",
    }
    with use_hub(Hub(REPOSITORY, files), monkeypatch, tmp_path) as used:
        yield used


@pytest.fixture
def own(tmp_path: Path) -> Store:
    return open_store(tmp_path / "checkpoints")


def spec_of(tmp_path: Path, repository: str = REPOSITORY, **options: str) -> TrainingJobSpec:
    grow(tmp_path, **{"text/a.txt": "the cat the cat the cat"})
    tokenizer = {"type": "huggingFace", "huggingFace": {"repository": repository, **options}}
    return make_config(
        make_spec(tmp_path / "checkpoints", tmp_path / "text", tokenizer=tokenizer, training__sequenceLength=4)
    ).spec


def test_the_tokenizer_is_downloaded_once_and_without_weights(hub: Hub, own: Store, tmp_path: Path) -> None:
    spec = spec_of(tmp_path)

    resolved = resolve_tokenizer(spec, own, is_leader=True).tokenizer
    requests = len(hub.requests)
    again = resolve_tokenizer(spec, own, is_leader=False).tokenizer

    assert again == resolved
    assert len(hub.requests) == requests
    assert not [path for _, path, _ in hub.requests if path.endswith(".safetensors")]
    (document,) = DocumentEncoder(resolved, 272).encode_documents([b"the cat"], "a.txt")
    assert document.ids.tolist() == [0, 1, 4]
    template = read_chat_template(resolved)
    assert template is not None
    assert (template.source, template.field, template.path) == ("{{ messages }}", FIELD, REPOSITORY)


def test_revisions_have_folders_and_a_path_stays(hub: Hub, own: Store, tmp_path: Path) -> None:
    one, other = (
        resolve_tokenizer(spec, own, is_leader=True).tokenizer.path
        for spec in (spec_of(tmp_path), spec_of(tmp_path, revision=COMMIT))
    )
    plain = make_config(make_spec(tmp_path / "checkpoints", tmp_path / "text")).spec

    assert one != other
    assert resolve_tokenizer(plain, own, is_leader=True) is plain


def test_errors_name_the_repository(hub: Hub, own: Store, tmp_path: Path) -> None:
    hub.files = {"tokenizer.json": b"{}", "README.md": b""}

    resolved = resolve_tokenizer(spec_of(tmp_path), own, is_leader=True)
    broken = fail(lambda: DocumentEncoder(resolved.tokenizer, 272))
    without = fail(lambda: read_chat_template(resolved.tokenizer))
    with pytest.raises(TrainingError, match=r"status 404 for tests/other at revision main\.") as unknown:
        resolve_tokenizer(spec_of(tmp_path, "tests/other"), own, is_leader=True)

    for error in (broken, without):
        assert error.reason == FailureReason.DATA
        assert (error.path, error.value) == (FIELD, REPOSITORY)
    assert "is not a tokenizer.json" in str(broken)
    assert "has no chat template" in str(without)
    assert (unknown.value.path, unknown.value.value) == (FIELD, "tests/other")


def test_a_repository_without_a_fast_tokenizer_says_so(hub: Hub, own: Store, tmp_path: Path) -> None:
    del hub.files["tokenizer.json"]

    resolved = resolve_tokenizer(spec_of(tmp_path), own, is_leader=True)
    error = fail(lambda: DocumentEncoder(resolved.tokenizer, 272))

    assert (error.path, error.value) == (FIELD, REPOSITORY)
    assert "tokenizer.json" in str(error)


@pytest.mark.slow
def test_a_job_trains_with_the_tokenizer_of_a_repository(hub: Hub, crew: Crew, tmp_path: Path, programs: Path) -> None:
    config = make_config(spec_of(tmp_path).model_dump(mode="json", by_alias=True))

    trainers = crew.start(config, make_world(1, 2), programs)
    for trainer in trainers:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()

    assert (tmp_path / "checkpoints/tokenizer.json").read_bytes() == hub.files["tokenizer.json"]
    assert (tmp_path / "checkpoints/model.json").exists()
