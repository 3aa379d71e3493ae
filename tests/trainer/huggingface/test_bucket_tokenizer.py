"""Tokenizers in buckets: copied once below the job's folder, where all processes read them."""

import json
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.object_servers import SCHEMES, ObjectServers, new_root
from tests.support.trainer.texts import fail, make_tokenizer
from tests.support.trainer.tiny import make_config, make_spec
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.data import token_cache
from trainingjob_trainer.huggingface.hub_tokenizer import resolve_tokenizer
from trainingjob_trainer.huggingface.tokenizer_files import read_chat_template, read_tokenizer_files
from trainingjob_trainer.store.opening import open_store


@pytest.fixture(params=SCHEMES)
def root(request: pytest.FixtureRequest, object_servers: ObjectServers) -> Iterator[str]:
    with object_servers.environment(request.param):
        yield new_root(request.param)


def spec_with(tmp_path: Path, path: str, kind: str, **more: Any) -> TrainingJobSpec:
    changes = {"tokenizer": {"type": kind, "path": path, **more}}
    return make_config(make_spec(tmp_path / "checkpoints", tmp_path / "text", **changes)).spec


def resolve(tmp_path: Path, path: str, kind: str, *, is_leader: bool = True) -> TrainingJobSpec:
    return resolve_tokenizer(spec_with(tmp_path, path, kind), open_store(tmp_path / "checkpoints"), is_leader=is_leader)


@pytest.mark.parametrize("kind", ["tokenizers", "huggingFace"])
def test_a_tokenizer_is_copied_once(root: str, tmp_path: Path, kind: str) -> None:
    make_tokenizer(tmp_path / "tokenizer.json", "a", "<unk>")
    content, bucket = (tmp_path / "tokenizer.json").read_bytes(), open_store(root)
    bucket.write("mine/tokenizer.json", (content,))
    bucket.write("mine/tokenizer_config.json", (b'{"eos_token": "a"}',))
    bucket.write("mine/model.safetensors", (b"large",))
    path = f"{root}/mine" if kind == "huggingFace" else f"{root}/mine/tokenizer.json"

    led = resolve(tmp_path, path, kind)
    bucket.delete_tree("mine")
    followed = resolve(tmp_path, path, kind, is_leader=False)

    files = read_tokenizer_files(followed.tokenizer)
    assert led == followed
    assert (files.content, files.special_tokens) == (content, {"eos_token": "a"} if kind == "huggingFace" else {})
    assert not list((tmp_path / "checkpoints").rglob("model.safetensors"))


@pytest.mark.parametrize("kind", ["tokenizers", "huggingFace"])
def test_each_host_of_a_job_in_a_bucket_has_a_copy(
    root: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tokenizer(tmp_path / "tokenizer.json", "a", "<unk>")
    content, bucket = (tmp_path / "tokenizer.json").read_bytes(), open_store(root)
    bucket.write("mine/tokenizer.json", (content,))
    path = f"{root}/mine" if kind == "huggingFace" else f"{root}/mine/tokenizer.json"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    resolved = [
        resolve_tokenizer(spec_with(tmp_path, path, kind), open_store(f"{root}/run"), is_leader=is_leader).tokenizer
        for is_leader in (True, False)
    ]

    assert resolved[0] == resolved[1]
    assert Path(resolved[0].path or "").is_relative_to(tmp_path)
    assert read_tokenizer_files(resolved[0]).content == content


@pytest.mark.parametrize("is_link", [True, False], ids=["a link", "a folder of all users"])
def test_a_copy_that_other_users_can_change_is_not_used(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_link: bool
) -> None:
    make_tokenizer(tmp_path / "tokenizer.json", "a", "<unk>")
    open_store(root).write("mine/tokenizer.json", ((tmp_path / "tokenizer.json").read_bytes(),))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spec = spec_with(tmp_path, f"{root}/mine/tokenizer.json", "tokenizers")
    copy = Path(resolve_tokenizer(spec, open_store(f"{root}/run"), is_leader=True).tokenizer.path or "").parent
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    if is_link:
        copy.rename(tmp_path / "theirs")
        copy.symlink_to(tmp_path / "theirs")
    else:
        copy.chmod(0o777)

    error = fail(lambda: resolve_tokenizer(spec, open_store(f"{root}/run"), is_leader=True))

    assert f"{copy} is not a folder that only this user writes" in str(error)


def test_hosts_with_other_temporary_folders_agree_on_the_tokens(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tokenizer(tmp_path / "tokenizer.json", "a", "<unk>")
    bucket = open_store(root)
    bucket.write("mine/tokenizer.json", ((tmp_path / "tokenizer.json").read_bytes(),))
    bucket.write("chat.jinja", (b"{{ messages }}",))
    spec = spec_with(tmp_path, f"{root}/mine", "huggingFace", chatTemplate={"path": f"{root}/chat.jinja"})
    names, paths = set(), set()

    for host in ("one", "two"):
        (tmp_path / host).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / host))
        resolved = resolve_tokenizer(spec, open_store(f"{root}/run"), is_leader=host == "one")
        paths.add(resolved.tokenizer.path)
        names.add(token_cache._hash_sections(resolved))

    assert len(paths) == 2
    assert len(names) == 1


@pytest.mark.parametrize("kind", ["tokenizers", "huggingFace"])
def test_a_missing_tokenizer_ends_the_job(root: str, tmp_path: Path, kind: str) -> None:
    error = fail(lambda: resolve(tmp_path, f"{root}/none", kind))

    assert f"{root}/none" in str(error)
    assert (error.path, error.value, error.fatal) == ("spec.tokenizer.path", f"{root}/none", True)


def test_a_missing_bucket_ends_the_job(root: str, tmp_path: Path) -> None:
    error = fail(lambda: resolve(tmp_path, f"{root[:2]}://missing/tokenizer", "huggingFace"))

    assert "does not exist" in str(error)
    assert error.fatal


@pytest.mark.parametrize("name", ["chat.jinja", "tokenizer_config.json"])
def test_a_chat_template_is_copied_beside_any_tokenizer(root: str, tmp_path: Path, name: str) -> None:
    make_tokenizer(tmp_path / "tokenizer.json", "a", "<unk>")
    bucket, text = open_store(root), "{{ messages[0]['content'] }}"
    bucket.write("mine/tokenizer.json", ((tmp_path / "tokenizer.json").read_bytes(),))
    bucket.write(f"chat/{name}", ((json.dumps({"chat_template": text}) if name.endswith("json") else text).encode(),))
    template = {"path": f"{root}/chat/{name}"}
    for path in (f"{root}/mine/tokenizer.json", str(tmp_path / "tokenizer.json")):
        spec = spec_with(tmp_path, path, "tokenizers", chatTemplate=template)
        resolved = resolve_tokenizer(spec, open_store(f"{root}/run"), is_leader=True).tokenizer

        found = read_chat_template(resolved)
        assert found
        assert found.source == text
        assert read_tokenizer_files(resolved).content == (tmp_path / "tokenizer.json").read_bytes()


def test_a_missing_chat_template_ends_the_job(root: str, tmp_path: Path) -> None:
    uri = f"{root}/none.jinja"
    spec = spec_with(tmp_path, "/t.json", "tokenizers", chatTemplate={"path": uri})

    error = fail(lambda: resolve_tokenizer(spec, open_store(tmp_path / "checkpoints"), is_leader=True))

    assert f"{uri} cannot be read" in str(error)
    assert (error.path, error.value, error.fatal) == ("spec.tokenizer.chatTemplate.path", uri, True)
