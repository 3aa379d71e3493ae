"""Chat templates: texts of three families as their models expect them, and the parts that the assistant writes."""

from typing import Any

import pytest

from tests.support.trainer.chat import CHATML, GEMMA, LLAMA3, MARKED_CHATML, say
from trainingjob_trainer.data.chat.chat_template import ChatTemplate, ChatTemplateError

TURNS = say("user: Hi!", "assistant: Hello.", "user: 2+2?", "assistant:  4 ")
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
FAMILIES: dict[str, tuple[str, str, list[str]]] = {
    "ChatML": (
        CHATML,
        (
            "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n 4 <|im_end|>\n"
        ),
        ["Hello.<|im_end|>\n", " 4 <|im_end|>\n"],
    ),
    "Llama 3": (
        LLAMA3,
        (
            "<bos><|start_header_id|>user<|end_header_id|>\n\nHi!<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\n2+2?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n4<|eot_id|>"
        ),
        ["Hello.<|eot_id|>", "4<|eot_id|>"],
    ),
    "Gemma": (
        GEMMA,
        (
            "<bos><start_of_turn>user\nHi!<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
            "<start_of_turn>user\n2+2?<end_of_turn>\n<start_of_turn>model\n4<end_of_turn>\n"
        ),
        ["Hello.<end_of_turn>\n", "4<end_of_turn>\n"],
    ),
    "marked ChatML": (
        MARKED_CHATML,
        (
            "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n 4 <|im_end|>\n"
        ),
        ["Hello.<|im_end|>", " 4 <|im_end|>"],
    ),
}


@pytest.mark.parametrize(("source", "text", "answers"), FAMILIES.values(), ids=FAMILIES.keys())
def test_the_text_and_the_answers_of_a_conversation(source: str, text: str, answers: list[str]) -> None:
    template = ChatTemplate(source, TOKENS)

    rendered, spans = template.render_with_answers(TURNS)

    assert template.render(TURNS) == rendered == text
    assert [rendered[begin:end] for begin, end in spans] == answers


@pytest.mark.parametrize(
    ("source", "want"),
    [
        (CHATML, "<|im_start|>assistant\n"),
        (LLAMA3, "<|start_header_id|>assistant<|end_header_id|>\n\n"),
        (GEMMA, "<start_of_turn>model\n"),
    ],
    ids=["ChatML", "Llama 3", "Gemma"],
)
def test_the_generation_prompt_begins_the_next_turn(source: str, want: str) -> None:
    template = ChatTemplate(source, TOKENS)

    assert template.render(TURNS[:1], add_generation_prompt=True) == template.render(TURNS[:1]) + want


@pytest.mark.parametrize(
    ("source", "message", "want"),
    [
        ("{{ m.content }}{{ 'tool_calls' in m }}", {"content": None, "tool_calls": [{}]}, "True"),
        ("{{ m.content }}{{ 'tool_calls' in m }}", {"content": "a", "tool_calls": None, "name": None}, "aFalse"),
        ("{{ m.reasoning_content }}", {"content": "a", "reasoning": "b"}, "b"),
        ("{{ m.thinking }}{{ m.reasoning_content }}", {"content": "a", "reasoning_content": "b"}, "bb"),
        ("{{ m.thinking }}{{ m.reasoning_content }}", {"content": "a", "thinking": "b", "reasoning": "c"}, "bb"),
        ("{{ m.thinking }}{{ m.reasoning_content }}", {"thinking": "b", "reasoning_content": "c"}, "bc"),
        ("{{ m.keys() | list }}", {"content": "a", "thinking": None}, "['role', 'content']"),
    ],
)
def test_a_template_gets_messages_as_in_transformers(source: str, message: dict[str, Any], want: str) -> None:
    template = ChatTemplate("{%- set m = messages[0] -%}" + source, TOKENS)

    assert template.render([{"role": "assistant", **message}]) == want


def test_other_fields_of_a_message_reach_the_template() -> None:
    template = ChatTemplate("{{ messages[0].name }}{{ tools is none }}{{ documents is none }}{{ eos_token }}", TOKENS)

    assert template.render([{"role": "user", "content": "", "name": "Eve"}]) == "EveTrueTrue<eos>"


def test_the_tag_marks_answers_wherever_they_lie() -> None:
    source = "{% for m in messages %}[{% generation %}{{ m.content }}{% endgeneration %}]{% endfor %}"

    text, spans = ChatTemplate(source, {}).render_with_answers(say("user: a", "assistant: bc"))

    assert (text, spans) == ("[a][bc]", [(1, 2), (4, 6)])


FAILURES: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "a template that raises": (
        GEMMA,
        say("system: Be kind.", "user: Hi!"),
        "refuses the messages: System role not supported",
    ),
    "roles that do not alternate": (GEMMA, say("user: a", "user: b"), "refuses the messages: Conversation roles must"),
    "a field that is missing": (
        "{{ messages[0].tool.name }}",
        say("user: a"),
        "uses what the messages do not have: 'dict object' has no attribute 'tool'",
    ),
    "an error of an expression": ("{{ 1 / 0 }}", say("user: a"), "fails for the messages: ZeroDivisionError"),
    "other text of earlier turns": (
        "{% for m in messages %}{{ m.content if loop.last else '-' }}{% endfor %}",
        say("user: a", "assistant: b", "user: c"),
        "does not show which text of message 2 the assistant writes",
    ),
    "a generation prompt that turns do not begin with": (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>>{% endif %}",
        say("user: a", "assistant: b"),
        "Put `{% generation %}` and `{% endgeneration %}` around the assistant's text",
    ),
    "a tag inside of a macro": (
        (
            "{% macro f(m) %}<{% generation %}{{ m }}{% endgeneration %}>{% endmacro %}"
            "{% for m in messages %}x{{ f(m.content) }}{% endfor %}"
        ),
        say("user: a", "assistant: b"),
        "has `{% generation %}` inside of a macro, a filter or a `set` block",
    ),
}


@pytest.mark.parametrize(("source", "messages", "want"), FAILURES.values(), ids=FAILURES.keys())
def test_a_conversation_that_cannot_be_rendered_fails(source: str, messages: list[dict[str, Any]], want: str) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate(source, TOKENS).render_with_answers(messages)

    assert want in str(caught.value)


def test_a_template_that_names_the_tag_in_a_comment_has_none() -> None:
    source = "{# {% generation %} #}" + CHATML

    assert len(ChatTemplate(source, {}).render_with_answers(TURNS)[1]) == 2
