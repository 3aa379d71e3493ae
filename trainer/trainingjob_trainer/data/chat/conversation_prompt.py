"""Conversations that a model continues: the text of the chat template up to the answer, as tokens."""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.tokenizer import Tokenizer
from trainingjob_trainer.data.chat.answer_encoder import parse_template
from trainingjob_trainer.data.chat.answer_weights import MarkedText
from trainingjob_trainer.data.chat.chat_template import ASSISTANT, ChatTemplate, ChatTemplateError, Message
from trainingjob_trainer.data.tokenizers import DocumentEncoder
from trainingjob_trainer.huggingface.tokenizer_files import read_chat_template
from trainingjob_trainer.runtime.errors import TrainingError

ANSWER = "x"
"""Answer after which a template shows how a turn ends."""


class ConversationPrompt(NamedTuple):
    """A conversation up to the answer of the model."""

    text: str
    ids: list[int]
    end: int | None
    """The special token that ends a turn of the assistant. None: the template shows none."""


def encode_conversation(
    tokenizer: Tokenizer, encoder: DocumentEncoder, messages: Sequence[Message], path: str
) -> ConversationPrompt:
    """Return a conversation as the chat template renders it. `path` is the field with the messages.

    Raises:
        TrainingError: there is no template, it does not render the messages, or the tokenizer cannot encode the text.
    """
    file = read_chat_template(tokenizer)
    if file is None:
        message = f"must be set: `type: {tokenizer.type}` has no chat template. Set `path` to a Jinja file in the pod."
        raise TrainingError(FailureReason.DATA, message, path="spec.tokenizer.chatTemplate", value=None)
    template = parse_template(file, encoder)
    try:
        text = template.render(messages, add_generation_prompt=True)
    except ChatTemplateError as error:
        raise file.error(f"{path}: the template {error}.") from error
    (document,) = encoder.encode_marked([MarkedText(text, (), is_bounded=False)], path)
    return ConversationPrompt(text, document.ids.tolist(), _find_end(template, encoder, messages, text))


def _find_end(
    template: ChatTemplate, encoder: DocumentEncoder, messages: Sequence[Message], text: str
) -> int | None:  # None: no special token follows an answer
    with suppress(ChatTemplateError):
        answered = template.render([*messages, {"role": ASSISTANT, "content": ANSWER}])
        if answered.startswith(text + ANSWER):
            return encoder.find_special_token(answered.removeprefix(text + ANSWER))
    return None
