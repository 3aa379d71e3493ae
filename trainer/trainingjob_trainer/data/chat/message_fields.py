"""Fields of messages as chat templates get them: without null, and with the names that `transformers` adds."""

from collections.abc import Mapping
from typing import Any

REASONING, SHORT_REASONING = "reasoning_content", "thinking"
REASONING_FIELDS = (REASONING, SHORT_REASONING, "reasoning")
"""Names of the text that a model writes before its answer, in the order in which they count."""


def prepare_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as `apply_chat_template` of `transformers` gives it to a template.

    A field that is null is left out: tables have all fields in each message, and templates would write `None`. The
    reasoning has the names of most templates and of gpt-oss, whichever name it has in the record.
    """
    fields = {name: value for name, value in message.items() if value is not None}
    reasoning = next((fields[name] for name in REASONING_FIELDS if name in fields), None)
    return fields if reasoning is None else {SHORT_REASONING: reasoning, **fields, REASONING: reasoning}
