"""Records with conversations, or with prompts and completions: their documents, and what they must hold."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from tests.support.trainer.chat import say
from tests.support.trainer.texts import fail, find, grow
from trainingjob_trainer.data.sources.readers import read_documents

CHAT = say("user: Hi!", "assistant: Hé.")


def write_jsonl(records: list[dict[str, Any]]) -> bytes:
    return "\n".join(json.dumps(record) for record in records).encode()


def write_parquet(records: list[dict[str, Any]]) -> bytes:
    content = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(records), content)
    return content.getvalue()


def write_arrow(records: list[dict[str, Any]]) -> bytes:
    table, content = pa.Table.from_pylist(records), io.BytesIO()
    with ipc.new_stream(content, table.schema) as writer:
        writer.write_table(table)
    return content.getvalue()


WRITERS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "jsonl": write_jsonl,
    "parquet": write_parquet,
    "arrow": write_arrow,
}
EACH = pytest.mark.parametrize("name", WRITERS)


def read(tmp_path: Path, name: str, content: bytes, **options: Any) -> list[Any]:
    grow(tmp_path, **{f"a.{name}": content})
    return [json.loads(one) for one in read_documents(find(tmp_path, format=name, **options).files[0])]


@EACH
def test_a_conversation_is_a_document_with_all_fields_of_its_messages(tmp_path: Path, name: str) -> None:
    records = [{"id": 1, "chat": [message | {"name": "x"} for message in CHAT]}, {"id": 2, "chat": CHAT[:1]}]

    first, second = read(tmp_path, name, WRITERS[name](records), messages="chat")

    assert first == {"messages": records[0]["chat"]}
    assert second == {"messages": [CHAT[0] | ({} if name == "jsonl" else {"name": None})]}


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}


@EACH
def test_tools_are_objects_or_their_json(tmp_path: Path, name: str) -> None:
    chat = [*CHAT[:1], CALL]
    texts = [{"chat": chat, "tools": json.dumps(TOOLS)}, {"chat": chat, "tools": None}, {"chat": chat, "tools": "[]"}]

    documents = read(tmp_path / "texts", name, WRITERS[name](texts), messages="chat", tools="tools")
    objects = WRITERS[name]([{"chat": chat, "tools": TOOLS}])
    (written,) = read(tmp_path / "objects", name, objects, messages="chat", tools="tools")

    assert [one["tools"] for one in documents] == [TOOLS, None, None]
    assert written["tools"] == TOOLS
    assert written["messages"][1]["content"] is None
    assert written["messages"][1]["tool_calls"] == CALL["tool_calls"]


BAD_TOOLS: dict[str, tuple[Any, str]] = {
    "no JSON": ("now", "line 1: `tools` must be a list of objects, or JSON text of one (Expecting value"),
    "one object": ({"name": "now"}, "line 1: `tools` must be a list of objects, but is an object."),
    "names": (["now"], "line 1: `tools` must be a list of objects, but is a list of other values."),
    "JSON of a number": ("3", "line 1: `tools` must be a list of objects, but is a number."),
}


@pytest.mark.parametrize(("tools", "want"), BAD_TOOLS.values(), ids=BAD_TOOLS.keys())
def test_tools_of_another_kind_are_rejected(tmp_path: Path, tools: Any, want: str) -> None:
    content = write_jsonl([{"messages": CHAT, "tools": tools}])

    assert want in str(fail(lambda: read(tmp_path, "jsonl", content, messages="messages", tools="tools")))


@EACH
def test_a_prompt_and_its_completion_are_a_document(tmp_path: Path, name: str) -> None:
    content = WRITERS[name]([{"q": {"text": "2+2="}, "a": "4", "id": 1}])

    assert read(tmp_path, name, content, prompt="q.text", completion="a") == [{"prompt": "2+2=", "completion": "4"}]


def test_documents_are_the_same_in_all_formats(tmp_path: Path) -> None:
    documents = []
    for name, write in WRITERS.items():
        grow(tmp_path / name, **{f"a.{name}": write([{"messages": CHAT}])})
        source = find(tmp_path / name, format=name, messages="messages")
        documents += read_documents(source.files[0])

    assert len(set(documents)) == 1


def nest(depth: int) -> list[Any]:
    """Return lists in each other."""
    return [nest(depth - 1)] if depth else []


def test_lists_in_a_record_may_be_nested(tmp_path: Path) -> None:
    messages = [CHAT[0] | {"x": nest(90)}]

    assert read(tmp_path, "jsonl", write_jsonl([{"messages": messages}]), messages="messages") == [
        {"messages": messages}
    ]


BAD_RECORDS: dict[str, tuple[Any, str]] = {
    "an empty list": ([], "line 1: `messages` must have a message or more, but is empty."),
    "a text": ("hi", "line 1: `messages` must be a list of messages, but is a string."),
    "null": (None, "line 1: `messages` must be a list of messages, but is null."),
    "a message that is a text": (["hi"], "line 1: `messages`: message 1 must be an object, but is a string."),
    "no content": ([{"role": "user"}], "message 1 must have `role` and `content`. It has `role`."),
    "the fields of ShareGPT": ([{"from": "human", "value": "hi"}], "`content`. It has `from`, `value`."),
    "nothing in a message": ([{}], "message 1 must have `role` and `content`. It has no fields."),
    "content that is a list": (
        [*CHAT, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "message 3: `content` must be a string, but is a list.",
    ),
    "content that is null": ([{"role": "assistant", "content": None}], "`content` must be a string, but is null."),
    "calls without a list": (
        [{"role": "assistant", "tool_calls": {"a": 1}}],
        "`tool_calls` must be a list of objects.",
    ),
    "an unknown role": (
        say("wizard: hi"),
        '`role` must be one of system, developer, user, assistant, tool, but is "wizard".',
    ),
    "a role of another format": (say("human: hi"), 'but is "human". Nearest legal value: user.'),
    "a role in capitals": (say("User: hi"), 'but is "User". Nearest legal value: user.'),
    "NUL": (say("user: a\0b"), "`messages` must not contain NUL characters."),
    "lists in lists": ([CHAT[0] | {"x": nest(600)}], "must not nest lists and objects more than 100 levels deep."),
    "half of a surrogate pair": (say("user: \ud800"), "`messages` must be valid Unicode"),
}


@pytest.mark.parametrize(("messages", "want"), BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_an_invalid_conversation_fails_with_its_place(tmp_path: Path, messages: Any, want: str) -> None:
    error = fail(lambda: read(tmp_path, "jsonl", write_jsonl([{"messages": messages}]), messages="messages"))

    assert want in str(error)
    assert "a.jsonl line 1" in str(error)
    assert (error.path, error.fatal) == ("spec.data.train[0].path", True)


@EACH
def test_an_invalid_message_fails_in_all_formats(tmp_path: Path, name: str) -> None:
    content = WRITERS[name]([{"messages": CHAT}, {"messages": say("bot: hi")}])

    error = fail(lambda: read(tmp_path, name, content, messages="messages"))

    assert f"{'line' if name == 'jsonl' else 'row'} 2: `messages`: message 1: `role` must be one of" in str(error)


@EACH
def test_a_missing_column_names_those_that_there_are(tmp_path: Path, name: str) -> None:
    content = WRITERS[name]([{"message": CHAT, "id": 1}])

    error = fail(lambda: read(tmp_path, name, content, messages="messages"))

    assert error.path == "spec.data.train[0].messages"
    assert "has no field `messages`. It has `id`, `message`. Set `messages` to the field that holds the conv" in str(
        error
    )
    assert str(error).endswith('Nearest legal value: "message".')


@EACH
def test_a_record_without_completion_fails(tmp_path: Path, name: str) -> None:
    content = WRITERS[name]([{"prompt": "a"}])

    error = fail(lambda: read(tmp_path, name, content, prompt="prompt", completion="completion"))

    assert error.path == "spec.data.train[0].completion"
    assert "Set `completion` to the field that holds the completion." in str(error)


def test_a_prompt_must_be_a_text(tmp_path: Path) -> None:
    error = fail(
        lambda: read(tmp_path, "jsonl", b'{"p": "a", "c": 5}', prompt="p", completion="c"),
    )

    assert "line 1: `c` must be a string, but is a number." in str(error)


BAD_COLUMNS: dict[str, tuple[Any, str]] = {
    "texts": (["hi"], "`messages` must hold lists of messages, but holds string. Set `messages` to another."),
    "lists of texts": ([["hi"]], "`messages` must hold lists of messages, but holds list<"),
    "an object": ([CHAT[0]], "`messages` must hold lists of messages, but holds struct<"),
}


@pytest.mark.parametrize(("values", "want"), BAD_COLUMNS.values(), ids=BAD_COLUMNS.keys())
def test_a_column_of_another_type_is_rejected(tmp_path: Path, values: Any, want: str) -> None:
    content = write_parquet([{"messages": value} for value in values])

    error = fail(lambda: read(tmp_path, "parquet", content, messages="messages"))

    assert error.path == "spec.data.train[0].messages"
    assert want in str(error)


def test_values_that_json_lacks_are_rejected(tmp_path: Path) -> None:
    content = write_parquet([{"messages": [CHAT[0] | {"raw": b"a"}]}])

    error = fail(lambda: read(tmp_path, "parquet", content, messages="messages"))

    assert "row 1: `messages` must hold texts, numbers, lists and objects, but " in str(error)


def test_texts_of_messages_must_be_unicode(tmp_path: Path) -> None:
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")])
    message = pa.StructArray.from_arrays([pa.array(["user"]), text], ["role", "content"])
    table = pa.table({"messages": pa.ListArray.from_arrays([0, 1], message)})
    content = io.BytesIO()
    parquet.write_table(table, content)

    error = fail(lambda: read(tmp_path, "parquet", content.getvalue(), messages="messages"))

    assert "row 1: `messages` must be UTF-8, but byte 1 is not." in str(error)
