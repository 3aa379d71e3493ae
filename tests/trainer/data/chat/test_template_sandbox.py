"""The sandbox of chat templates: work without end fails with a message, and nothing but the messages is reached."""

from typing import Any

import pytest
from jinja2.exceptions import TemplateError

from trainingjob_trainer.data.chat import template_limits, template_sandbox
from trainingjob_trainer.data.chat.chat_template import ChatTemplate, ChatTemplateError
from trainingjob_trainer.data.chat.template_sandbox import TemplateSandbox

MESSAGES = [{"role": "user", "content": "hi"}]
LOOP = "{% for i in range(9999) %}"
ENDLESS = "loops without end, or makes too much text. Correct the template, or remove the conversation"
TOO_LARGE = "makes a value of more than 10,000,000 characters"
WORK: dict[str, tuple[str, str]] = {
    "nested loops": (LOOP * 3 + "{% endfor %}" * 3, ENDLESS),
    "text in loops": (LOOP * 2 + "x" * 1000 + "{% endfor %}" * 2, ENDLESS),
    "text in loops that is kept": (
        f"{{% set x %}}{LOOP * 2}{'x' * 99}{{% endfor %}}{{% endfor %}}{{% endset %}}",
        ENDLESS,
    ),
    "values in loops": (LOOP + "{{ 'x' * 100000 }}{% endfor %}", ENDLESS),
    "slices in loops": ("{% set x = 'x' * 1000000 %}" + LOOP + "{% set y = x[1:] %}{% endfor %}", ENDLESS),
    "a range that is too long": ("{% for i in range(10001) %}{% endfor %}", "a range of more than 10,000 numbers"),
    "a macro that calls itself": ("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "a block that calls itself": ("{% block a %}{{ self.a() }}{% endblock %}", "RecursionError"),
    "a text times a number": ("{{ 'x' * 99999999 }}", TOO_LARGE),
    "a number times a text": ("{{ 99999999 * 'x' }}", TOO_LARGE),
    "a list times a number": ("{{ [1] * 99999999 }}", TOO_LARGE),
    "a text that doubles": (
        "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        TOO_LARGE,
    ),
    "a sum that doubles": (
        "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        TOO_LARGE,
    ),
    "a power": ("{{ 10 ** 99999999 }}", "makes a number of more than 1,024 bits"),
    "a product": (
        "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "makes a number of more than 1,024 bits",
    ),
    "a replaced text": ("{{ ('x' * 9999).replace('x', 'x' * 9999) }}", TOO_LARGE),
    "the filter of a replaced text": ("{{ ('x' * 9999) | replace('x', 'x' * 9999) }}", TOO_LARGE),
    "a joined list": ("{{ ('x' * 9999).join(['a'] * 9999) }}", TOO_LARGE),
    "the filter of a joined list": ("{{ (['a'] * 9999) | join('x' * 9999) }}", TOO_LARGE),
    "a joined text": ("{{ ('a' * 9999) | join('x' * 9999) }}", "joins with a long separator what is not a list"),
    "a wide number": ("{{ '%99999999d' % 1 }}", "pads a text with `%` to a thousand characters or more"),
    "a number of any width": ("{{ '%*d' % (99999999, 1) }}", "pads a text with `%`"),
    "a wide indent": ("{{ 'a\\nb' | indent(99999999) }}", "indents by more than 100 blanks"),
    "an indent of text": ("{{ 'a\\nb' | indent('x' * 999) }}", "indents by more than 100 blanks"),
    "wide JSON": ("{{ messages | tojson(indent=99999999) }}", "indents JSON by more than 100 blanks"),
}


@pytest.mark.parametrize(("source", "want"), WORK.values(), ids=WORK.keys())
def test_a_template_of_too_much_work_fails(source: str, want: str) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate(source, {}).render(MESSAGES)

    assert want in str(caught.value)


ACCESS: dict[str, tuple[str, str]] = {
    "the class of a text": ("{{ ''.__class__ }}", "the attribute `__class__` of str"),
    "by a filter": ("{{ '' | attr('__class__') | string }}", "the attribute `__class__` of str"),
    "by an item": ("{{ ''['__class__'] }}", "the attribute `__class__` of str"),
    "the class of a message": ("{{ messages[0].__class__.__mro__ }}", "the attribute `__class__` of dict"),
    "through map": ("{{ ['a'] | map(attribute='__class__') | list }}", "the attribute `__class__` of str"),
    "the globals of a function": ("{{ raise_exception.__globals__ }}", "the attribute `__globals__` of function"),
    "the initializer of a global": ("{{ cycler.__init__ }}", "the attribute `__init__` of type"),
    "the template": ("{{ self.__init__ }}", "the attribute `__init__` of TemplateReference"),
    "bytes of a number": ("{{ (1).to_bytes(99, 'big') }}", "the attribute `to_bytes` of int"),
    "formatted text": ("{{ '{0.__class__}'.format(1) }}", "the attribute `format` of str"),
    "padded text": ("{{ 'a'.center(9) }}", "the attribute `center` of str"),
    "a changed list": ("{% set x = messages.append(1) %}", "the attribute `append` of list"),
    "a changed message": ("{% set x = messages[0].update(a=1) %}", "the attribute `update` of dict"),
    "another template": ("{% include '/etc/passwd' %}", "fails for the messages: TypeError: no loader"),
}


@pytest.mark.parametrize(("source", "want"), ACCESS.values(), ids=ACCESS.keys())
def test_a_template_reaches_nothing_but_the_messages(source: str, want: str) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate(source, {}).render(MESSAGES)

    assert want in str(caught.value)


@pytest.mark.parametrize("name", ["random", "center", "wordwrap", "urlize", "pprint", "format", "batch"])
def test_filters_at_random_or_without_a_bound_are_unknown(name: str) -> None:
    with pytest.raises(ChatTemplateError, match=f"No filter named '{name}'"):
        ChatTemplate(f"{{{{ 'a' | {name} }}}}", {})


def test_the_clock_is_not_there() -> None:
    guarded = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}26 Jul 2024{% endif %}"

    assert ChatTemplate(guarded, {}).render(MESSAGES) == "26 Jul 2024"
    with pytest.raises(ChatTemplateError, match="the text must not depend on the day"):
        ChatTemplate("{{ strftime_now('%Y') }}", {}).render(MESSAGES)


EQUAL: dict[str, tuple[str, str]] = {
    "blocks are trimmed": ("{% if true %}\n  {% set a = 1 %}\nx\n{% endif %}\n", "x\n"),
    "break": ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
    "JSON without escapes": ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
    "indented JSON": ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
    "JSON in order": ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
    "joined text": ("{{ 'a' ~ 1 ~ none }}", "a1None"),
    "slices": ("{{ 'abcdef'[1:4] }}{{ [1, 2, 3][::-1] }}{{ messages[:1] | length }}", "bcd[3, 2, 1]1"),
    "methods of texts": ("{{ ' a-b '.strip().split('-') | join('+') | upper }}", "A+B"),
    "methods of messages": (
        "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
        "role=user;content=hi;",
    ),
    "operators": ("{{ 2 ** 3 * 2 + 1 }}{{ '%s-%03d' % ('a', 7) }}", "17a-007"),
    "filters": ("{{ 'a' | replace('a', 'b') | indent }}{{ ['x', 'y'] | join(', ') }}", "bx, y"),
    "undefined": ("{{ tools or 'none' }}{{ nothing }}{{ messages[0].name is defined }}", "noneFalse"),
    "macros": ("{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(messages[0].content) }}", "<hi>"),
    "namespaces": (
        "{% set n = namespace(a=1) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}",
        "4",
    ),
}


@pytest.mark.parametrize(("source", "want"), EQUAL.values(), ids=EQUAL.keys())
def test_a_template_renders_as_in_transformers(source: str, want: str) -> None:
    assert ChatTemplate(source, {}).render(MESSAGES) == want


def test_each_conversation_has_the_whole_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_COST", 20 * template_limits.STEP_COST)
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})

    assert [template.render(MESSAGES) for _ in range(99)] == ["hi"] * 99
    with pytest.raises(ChatTemplateError, match="loops without end"):
        template.render(MESSAGES * 99)


@pytest.mark.parametrize("value", ["a", 1, None, [1], {"a": 1}])
def test_the_cost_of_a_value_is_its_size(value: Any) -> None:
    sandbox = TemplateSandbox()

    assert sandbox.charge_value(value) == value
    size = 0 if value in (1, None) else 1
    assert sandbox.cost == template_limits.STEP_COST + size


def test_invalid_templates_are_described() -> None:
    with pytest.raises(ChatTemplateError, match="is not a valid Jinja template: line 2: "):
        ChatTemplate("a\n{% for %}", {})
    with pytest.raises(ChatTemplateError, match="nested too deeply"):
        ChatTemplate("{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}", {})
    assert issubclass(template_limits.BudgetError, TemplateError)
