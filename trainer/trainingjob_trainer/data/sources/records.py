"""Documents of records: a text, a conversation, a prompt with its completion, or a pair of answers.

All but a text are documents in JSON, whose keys are the fields of the source. So documents of all kinds are UTF-8 text
without NUL, which is hashed, counted and compared in one way.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from trainingjob_api.spec.data import DEFAULT_COLUMN, TextSource
from trainingjob_api.spec.evaluation import MessageRole
from trainingjob_trainer.data.sources.source_files import SourceFile, plural
from trainingjob_trainer.runtime.errors import TrainingError

COLUMN, MESSAGES, PROMPT, COMPLETION = "column", "messages", "prompt", "completion"
TOOLS, TOOL_CALLS = "tools", "tool_calls"
CHOSEN, REJECTED = "chosen", "rejected"
ROLES = get_args(MessageRole)
OTHER_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "function": "tool"}
"""Roles of other data formats, and what they are called here."""
MAX_DEPTH = 100
"""Levels of lists and objects in a record."""
KINDS = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}

type FindValue = Callable[[str, str], Any]
"""Returns the value of a record, given a field of the source, such as `messages`, and the name that it has."""


def list_columns(source: TextSource) -> dict[str, str]:
    """Return the fields of a source that name fields of its records, each with that name."""
    if source.messages is not None:
        return {MESSAGES: source.messages} | ({} if source.tools is None else {TOOLS: source.tools})
    if source.chosen is not None and source.rejected is not None:
        prompt = {} if source.prompt is None else {PROMPT: source.prompt}
        return {**prompt, CHOSEN: source.chosen, REJECTED: source.rejected}
    if source.prompt is not None and source.completion is not None:
        return {PROMPT: source.prompt, COMPLETION: source.completion}
    return {COLUMN: source.column or DEFAULT_COLUMN}


def read_each[T](file: SourceFile, records: Iterable[T], read: Callable[[T], bytes]) -> Iterator[bytes]:
    """Yield the document of each record. With `onBadRecord: skip`, bad records are counted and left out.

    Raises:
        TrainingError: `read` raises it, or all records are bad: then the file is not what the source says it is.
    """
    has_documents = False
    for record in records:
        try:
            document = read(record)
        except TrainingError as error:
            file.reject_record(error)
            continue
        has_documents = True
        yield document
    bad = file.bad_records
    if bad.count and not has_documents and file.span is None:
        count = plural(bad.count, "record")
        raise file.error(f"must have a valid record, but its {count} are bad. The first: {bad.first}")


def make_document(file: SourceFile, place: str, values: Mapping[str, Any]) -> bytes:
    """Return the document of a record, from the values of `list_columns`. `place` is the record, such as `line 3`.

    Raises:
        TrainingError: a value is not what its field must hold.
    """
    names, values = list_columns(file.source), dict(values)
    holds_conversations = isinstance(values.get(CHOSEN), list)
    for field, value in values.items():
        where = f"{place}: `{names[field]}`"
        if field == MESSAGES or (holds_conversations and isinstance(value, list)):
            check_messages(file, where, value)
        elif field == TOOLS:
            values[TOOLS] = _parse_tools(file, where, value)
        elif not isinstance(value, str):
            raise file.error(f"{where} must be a string, but is {describe_kind(value)}.{_advise_pair(values)}")
        elif holds_conversations:
            raise file.error(f"{where} must be a list of messages, as `{names[CHOSEN]}` is, but is a string.")
    text = values[COLUMN] if COLUMN in values else json.dumps(values, ensure_ascii=False)
    where = f"{place}: `{'`, `'.join(names.values())}`"
    _check_texts(file, where, values)
    try:
        return str(text).encode()
    except UnicodeEncodeError as error:
        raise file.error(f"{where} must be valid Unicode, but has half of a surrogate pair.") from error


def _advise_pair(values: Mapping[str, Any]) -> str:
    """Return what else a value may be, as a sentence after a blank; empty: nothing."""
    return " The values of a pair are all strings, or all lists of messages." if CHOSEN in values else ""


def _parse_tools(file: SourceFile, where: str, tools: Any) -> list[dict[str, Any]] | None:  # None: there are none
    """Return the definitions of tools. Tables hold them as JSON text, because each tool has other parameters."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError) as error:
            raise file.error(f"{where} must be a list of objects, or JSON text of one ({error}).") from error
    if isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools):
        return tools or None
    if tools is None:
        return None
    kind = "a list of other values" if isinstance(tools, list) else describe_kind(tools)
    raise file.error(f"{where} must be a list of objects, but is {kind}.")


def check_messages(file: SourceFile, where: str, messages: Any) -> None:
    """Raise `TrainingError` unless a value is a list of messages with a known role, and a text or calls of tools."""
    if not isinstance(messages, list):
        raise file.error(f"{where} must be a list of messages, but is {describe_kind(messages)}.")
    if not messages:
        raise file.error(f"{where} must have a message or more, but is empty.")
    for number, message in enumerate(messages, 1):
        _check_message(file, f"{where}: message {number}", message)


def _check_message(file: SourceFile, where: str, message: Any) -> None:
    if not isinstance(message, dict):
        raise file.error(f"{where} must be an object, but is {describe_kind(message)}.")
    calls = message.get(TOOL_CALLS) or []
    if not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise file.error(f"{where}: `{TOOL_CALLS}` must be a list of objects.")
    has_text = not calls or message.get("content") is not None
    for key in ("role", "content") if has_text else ("role",):
        if key not in message:
            has = ", ".join(f"`{name}`" for name in message) or "no fields"
            raise file.error(f"{where} must have `role` and `content`. It has {has}.")
        if not isinstance(message[key], str):
            kind = describe_kind(message[key])
            raise file.error(f"{where}: `{key}` must be a string, but is {kind}.")
    if (role := message["role"]) not in ROLES:
        near = OTHER_ROLES.get(role) or next(iter(get_close_matches(role, ROLES, 1)), None)
        nearest = f" Nearest legal value: {near}." if near else ""
        raise file.error(f"{where}: `role` must be one of {', '.join(ROLES)}, but is {json.dumps(role)}.{nearest}")


def _check_texts(file: SourceFile, where: str, value: Any) -> None:
    """Raise `TrainingError` if a text inside of a value has NUL characters, or is nested too deeply to be written."""
    level = [value]
    for _ in range(MAX_DEPTH):
        if any(isinstance(item, str) and "\0" in item for item in level):
            raise file.error(f"{where} must not contain NUL characters.")
        level = [part for item in level for part in _list_parts(item)]
        if not level:
            return
    raise file.error(f"{where} must not nest lists and objects more than {MAX_DEPTH} levels deep.")


def _list_parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def describe_kind(value: Any) -> str:
    """Return what a value of JSON is, as the end of a sentence."""
    return "null" if value is None else KINDS[type(value)]
