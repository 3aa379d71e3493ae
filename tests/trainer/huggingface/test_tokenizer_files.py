"""A model's folder: its special tokens begin and end documents, and its chat template is found."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from tests.support.trainer.chat import CHATML, LLAMA3
from tests.support.trainer.texts import fail, grow, make_tokenizer
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.tokenizer import Tokenizer
from trainingjob_trainer.data.tokenizers import DocumentEncoder
from trainingjob_trainer.huggingface.tokenizer_files import (
    list_published_files,
    read_chat_template,
    read_tokenizer_files,
)

WORDS = ("the", "cat", "<unk>", "<s>", "</s>")


def folder_of(tmp_path: Path, *, is_bounded: bool = False, **files: Any) -> Path:
    """Make a model's folder; `files` are contents, as JSON unless they are texts."""
    tokenizer = make_tokenizer(tmp_path / "tokenizer.json", *WORDS, special=("<s>", "</s>"))
    if is_bounded:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
        tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = {name: one if isinstance(one, str) else json.dumps(one) for name, one in files.items()}
    return grow(tmp_path, **texts)


def tokenizer_of(folder: Path, **options: Any) -> Tokenizer:
    return Tokenizer(type="huggingFace", path=str(folder), **options)


def ids_of(tokenizer: Tokenizer) -> list[int]:
    (document,) = DocumentEncoder(tokenizer, 272).encode_documents([b"the cat"], "a.txt")
    return [int(number) for number in document.ids]


TOKENS = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None}
BOUNDS: dict[str, tuple[dict[str, Any], bool, list[int]]] = {
    "an end alone": ({"tokenizer_config.json": {"eos_token": "</s>"}}, False, [0, 1, 4]),
    "a begin that the tokenizer does not add": ({"tokenizer_config.json": TOKENS}, False, [0, 1, 4]),
    "a begin that tokenizer.json adds": ({"tokenizer_config.json": TOKENS}, True, [3, 0, 1, 4]),
    "a begin that the options add": ({"tokenizer_config.json": TOKENS | {"add_bos_token": True}}, False, [3, 0, 1, 4]),
    "a begin that the options leave out": (
        {"tokenizer_config.json": TOKENS | {"add_bos_token": False}},
        True,
        [0, 1, 4],
    ),
    "special tokens in their file": ({"special_tokens_map.json": TOKENS}, True, [3, 0, 1, 4]),
    "no options": ({}, True, [0, 1]),
}


@pytest.mark.parametrize(("files", "is_bounded", "want"), BOUNDS.values(), ids=BOUNDS.keys())
def test_the_folder_names_what_begins_and_ends_documents(
    tmp_path: Path, files: dict[str, Any], is_bounded: bool, want: list[int]
) -> None:
    assert ids_of(tokenizer_of(folder_of(tmp_path, is_bounded=is_bounded, **files))) == want


def test_the_spec_replaces_tokens_of_the_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, **{"tokenizer_config.json": TOKENS})

    assert ids_of(tokenizer_of(folder, begin_of_document="</s>", end_of_document="<s>")) == [4, 0, 1, 3]


def test_a_file_has_the_tokens_of_the_spec(tmp_path: Path) -> None:
    path = str(folder_of(tmp_path) / "tokenizer.json")

    tokenizer = Tokenizer(type="tokenizers", path=path, begin_of_document="<s>", end_of_document="</s>")

    assert ids_of(tokenizer) == [3, 0, 1, 4]
    assert read_tokenizer_files(tokenizer).special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_the_name_of_a_dataset_has_the_tokens_of_the_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, **{"tokenizer_config.json": TOKENS | {"add_bos_token": True}})

    key = DocumentEncoder(tokenizer_of(folder), 272).tokenizer_key

    assert key | {"sha256": ""} == {
        "type": "huggingFace",
        "beginOfDocument": "<s>",
        "endOfDocument": "</s>",
        "sha256": "",
    }


NAMED = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
TEMPLATES: dict[str, tuple[dict[str, Any], str]] = {
    "a file": ({"chat_template.jinja": CHATML}, CHATML),
    "a file before the options": (
        {"chat_template.jinja": CHATML, "tokenizer_config.json": {"chat_template": "o"}},
        CHATML,
    ),
    "a JSON file": (
        {"chat_template.json": {"chat_template": "j"}, "tokenizer_config.json": {"chat_template": "o"}},
        "j",
    ),
    "the options": ({"tokenizer_config.json": {"chat_template": LLAMA3}}, LLAMA3),
    "several in the options": ({"tokenizer_config.json": {"chat_template": NAMED}}, "d"),
}


@pytest.mark.parametrize(("files", "want"), TEMPLATES.values(), ids=TEMPLATES.keys())
def test_the_template_of_a_folder_is_found(tmp_path: Path, files: dict[str, Any], want: str) -> None:
    found = read_chat_template(tokenizer_of(folder_of(tmp_path, **files)))

    assert found
    assert (found.source, found.field, found.path) == (want, "spec.tokenizer.path", str(tmp_path))


def test_the_template_of_the_spec_replaces_that_of_the_folder(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path, **{"chat_template.jinja": CHATML, "a.json": {"chat_template": "a"}, "b.jinja": "\ufeffb"}
    )

    of_json = read_chat_template(tokenizer_of(folder, chat_template={"path": str(folder / "a.json")}))
    of_jinja = read_chat_template(tokenizer_of(folder, chat_template={"path": str(folder / "b.jinja")}))

    assert of_json
    assert of_jinja
    assert (of_json.source, of_jinja.source, of_jinja.field) == ("a", "b", "spec.tokenizer.chatTemplate.path")


def test_a_tokenizer_without_a_template_has_none() -> None:
    assert read_chat_template(Tokenizer()) is None
    assert read_chat_template(Tokenizer(type="tokenizers", path="/t.json")) is None


BAD_FOLDERS: dict[str, tuple[dict[str, Any], str]] = {
    "no template": (
        {},
        "has no chat template: neither chat_template.jinja, nor `chat_template` in tokenizer_config.json",
    ),
    "a template of other kind": ({"tokenizer_config.json": {"chat_template": 1}}, "has no chat template"),
    "a template that is nested too deeply": ({"chat_template.json": "[" * 99999}, "has no chat template"),
    "several templates without a default": (
        {"tokenizer_config.json": {"chat_template": NAMED[:1]}},
        "has no chat template",
    ),
    "options that are a list": ({"tokenizer_config.json": []}, "tokenizer_config.json must be a JSON object."),
    "options that are no JSON": ({"tokenizer_config.json": "{"}, "tokenizer_config.json must be a JSON object, but"),
}


@pytest.mark.parametrize(("files", "want"), BAD_FOLDERS.values(), ids=BAD_FOLDERS.keys())
def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, files: dict[str, Any], want: str) -> None:
    tokenizer = tokenizer_of(folder_of(tmp_path, **files))

    error = fail(lambda: (read_tokenizer_files(tokenizer), read_chat_template(tokenizer)))

    assert (error.reason, error.path, error.value) == (FailureReason.DATA, "spec.tokenizer.path", str(tmp_path))
    assert want in str(error)


def test_a_path_that_is_no_folder_suggests_the_folder(tmp_path: Path) -> None:
    file = folder_of(tmp_path) / "tokenizer.json"

    assert str(fail(lambda: read_tokenizer_files(tokenizer_of(file)))).endswith(f"Nearest legal value: {tmp_path}.")
    missing = fail(lambda: read_tokenizer_files(tokenizer_of(tmp_path / "none")))
    assert str(missing) == "must be a folder with tokenizer.json that every host sees."


def test_a_folder_without_its_tokenizer_says_how_to_save_it(tmp_path: Path) -> None:
    error = fail(lambda: read_tokenizer_files(tokenizer_of(tmp_path)))

    assert "tokenizer.json cannot be read: No such file or directory. Save the tokenizer with `save_pretrained`" in str(
        error
    )


def test_a_token_of_the_folder_that_is_not_in_the_vocabulary_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, **{"tokenizer_config.json": {"eos_token": "<end>"}})

    error = fail(lambda: DocumentEncoder(tokenizer_of(folder), 272))

    assert (error.path, error.value) == ("spec.tokenizer.endOfDocument", "<end>")
    assert str(error) == "is not a token of the tokenizer. Its special tokens: <s>, </s>."


def test_line_breaks_of_a_template_are_those_of_every_system(tmp_path: Path) -> None:
    grow(tmp_path, **{"a.jinja": "a\r\nb"})

    found = read_chat_template(Tokenizer(chat_template={"path": str(tmp_path / "a.jinja")}))

    assert found
    assert found.source == "a\nb"


def test_files_of_a_cache_are_read_through_links(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    folder = folder_of(tmp_path / "blobs", **{"1.jinja": CHATML, "tokenizer_config.json": TOKENS})
    links = {"tokenizer.json": "-> ../blobs/tokenizer.json", "chat_template.jinja": "-> ../blobs/1.jinja"}
    tokenizer = tokenizer_of(grow(tmp_path / "snapshot", **links))

    assert list_published_files(tokenizer) == {
        "tokenizer.json": (folder / "tokenizer.json").read_bytes(),
        "chat_template.jinja": CHATML.encode(),
    }


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("tokenizer.json", read_tokenizer_files),
        ("tokenizer_config.json", read_tokenizer_files),
        ("tokenizer_config.json", read_chat_template),
        ("chat_template.jinja", read_chat_template),
        ("chat_template.jinja", list_published_files),
        ("a.jinja", read_chat_template),
        ("a.jinja", list_published_files),
    ],
)
def test_links_to_files_of_the_pod_are_not_read(tmp_path: Path, name: str, read: Callable[[Tokenizer], object]) -> None:
    """Otherwise its variables would be in the checkpoint folder, where others may read them."""
    folder = folder_of(tmp_path)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/proc/self/environ")
    template = {"chat_template": {"path": str(folder / name)}} if name == "a.jinja" else {}

    error = fail(lambda: read(tokenizer_of(folder, **template)))

    assert f"is a link to /proc/{os.getpid()}/environ, which belongs to the pod" in str(error)
    assert error.fatal


BAD_TEMPLATES: dict[str, tuple[str, bytes, str]] = {
    "a missing file": ("none.jinja", b"", "the template cannot be read: No such file or directory."),
    "no JSON": ("a.json", b"{", "must be a JSON object with the field `chat_template`, or a .jinja file."),
    "JSON without a template": ("a.json", b"{}", "must be a JSON object with the field `chat_template`"),
    "no text": ("a.jinja", b"a\xff", "must be UTF-8 text, but byte 1 is not."),
}


@pytest.mark.parametrize(("name", "content", "want"), BAD_TEMPLATES.values(), ids=BAD_TEMPLATES.keys())
def test_a_template_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, want: str) -> None:
    if content:
        grow(tmp_path, **{name: content})

    error = fail(lambda: read_chat_template(Tokenizer(chat_template={"path": str(tmp_path / name)})))

    assert (error.path, error.value) == ("spec.tokenizer.chatTemplate.path", str(tmp_path / name))
    assert want in str(error)
