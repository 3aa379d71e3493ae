"""Chat templates: the text of a conversation, and the parts of it that the assistant writes."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError, UndefinedError

from trainingjob_trainer.data.chat.answer_weights import Span
from trainingjob_trainer.data.chat.message_fields import prepare_message
from trainingjob_trainer.data.chat.template_limits import BudgetError
from trainingjob_trainer.data.chat.template_sandbox import TemplateSandbox

type Message = Mapping[str, Any]
"""A message of a conversation: `role`, `content`, and what else its record has."""
type Tools = Sequence[Mapping[str, Any]] | None
"""The definitions of tools. None: the conversation has no tools."""

ASSISTANT = "assistant"
USER_CODE_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Errors of Python that expressions of a template raise."""
CLOCK = "strftime_now"


class ChatTemplateError(ValueError):
    """A template cannot be used, or does not render a conversation. The message begins with a verb or `is`."""


class ChatTemplate:
    """A Jinja template, with the variables of special tokens such as `bos_token`.

    Raises:
        ChatTemplateError: the template is not valid.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._sandbox = TemplateSandbox()
        self._special_tokens = dict(special_tokens)
        try:
            self._template = self._sandbox.from_string(source)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(f"is not a valid Jinja template: line {error.lineno}: {error.message}") from error
        except (RecursionError, MemoryError) as error:
            raise ChatTemplateError("is not a valid Jinja template: it is nested too deeply") from error
        except (SyntaxError, ValueError) as error:  # of Python, to which Jinja compiles it
            reason = error.msg if isinstance(error, SyntaxError) else str(error)
            raise ChatTemplateError(f"is not a valid Jinja template: {reason}") from error

    def render(self, messages: Sequence[Message], tools: Tools = None, *, add_generation_prompt: bool = False) -> str:
        """Return the text of a conversation, as `apply_chat_template` of `transformers` renders it.

        Raises:
            ChatTemplateError: the template fails for these messages.
        """
        return "".join(self._render(messages, tools, add_generation_prompt=add_generation_prompt))

    def render_with_answers(self, messages: Sequence[Message], tools: Tools = None) -> tuple[str, list[Span]]:
        """Return the text of a conversation and the parts of it that the assistant writes, in order.

        The tag `generation` marks these parts. A template without it is rendered once before each turn of the
        assistant, with the generation prompt, and once after it: the difference is the assistant's.

        Raises:
            ChatTemplateError: the template fails for these messages, or does not show which part is the assistant's.
        """
        if self._sandbox.has_generation_tag:
            return self._render_marked(messages, tools)
        text = self.render(messages, tools)
        return text, [
            self._find_answer(text, messages, tools, place)
            for place, message in enumerate(messages)
            if message["role"] == ASSISTANT
        ]

    def _find_answer(self, text: str, messages: Sequence[Message], tools: Tools, place: int) -> Span:
        before = self.render(messages[:place], tools, add_generation_prompt=True)
        after = self.render(messages[: place + 1], tools)
        if not (after.startswith(before) and text.startswith(after)):
            raise ChatTemplateError(
                f"does not show which text of message {place + 1} the assistant writes: it renders the messages before "
                "in another way when more follow. Put `{% generation %}` and `{% endgeneration %}` around the "
                "assistant's text in a copy of the template, and set `spec.tokenizer.chatTemplate.path`"
            )
        return len(before), len(after)

    def _render_marked(self, messages: Sequence[Message], tools: Tools) -> tuple[str, list[Span]]:
        """Return the text, and the parts inside of `generation` blocks."""
        pieces: list[str] = []
        spans: list[Span] = []

        def track(answer: str) -> None:
            begin = sum(map(len, pieces))
            spans.append((begin, begin + len(answer)))
            answers.append(answer)

        answers: list[str] = []
        self._sandbox.generation_tracker = track
        try:
            self._render(messages, tools, add_generation_prompt=False, pieces=pieces)
        finally:
            self._sandbox.generation_tracker = None
        text = "".join(pieces)
        if [text[begin:end] for begin, end in spans] != answers:
            raise ChatTemplateError(
                "has `{% generation %}` inside of a macro, a filter or a `set` block, where its place is unknown. "
                "Move it to the loop over the messages"
            )
        return text, spans

    def _render(
        self,
        messages: Sequence[Message],
        tools: Tools,
        *,
        add_generation_prompt: bool,
        pieces: list[str] | None = None,
    ) -> list[str]:
        """Append the pieces of the text to a list as they are rendered, and return it."""
        pieces = [] if pieces is None else pieces
        self._sandbox.cost = 0
        variables = {
            **self._special_tokens,
            "messages": [prepare_message(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            for piece in self._template.generate(variables):
                pieces.append(piece)
        except UndefinedError as error:
            clock = f"'{CLOCK}'" in str(error)
            raise ChatTemplateError(
                f"calls `{CLOCK}`, but the text must not depend on the day. Write a fixed date in a copy of the "
                "template, and set `spec.tokenizer.chatTemplate.path`"
                if clock
                else f"uses what the messages do not have: {error}"
            ) from error
        except (BudgetError, SecurityError) as error:
            raise ChatTemplateError(f"{error}. Correct the template, or remove the conversation") from error
        except TemplateError as error:
            raise ChatTemplateError(f"refuses the messages: {error}") from error
        except USER_CODE_ERRORS as error:
            raise ChatTemplateError(f"fails for the messages: {type(error).__name__}: {error}") from error
        return pieces
