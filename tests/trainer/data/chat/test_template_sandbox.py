"""The sandbox of chat templates: work without end fails with a message, and nothing but the messages is reached."""

from typing import Any

import pytest
from jinja2.exceptions import TemplateError

from trainingjob_trainer.data.chat import template_limits, template_sandbox, template_values
from trainingjob_trainer.data.chat.chat_template import ChatTemplate, ChatTemplateError
from trainingjob_trainer.data.chat.template_sandbox import TemplateSandbox

MESSAGES = [{"role": "user", "content": "hi"}]
LOOP = "{% for i in range(9999) %}"
ENDLESS = "loops without end, or makes too much text. Correct the template, or remove the conversation"
TOO_LARGE = "makes a value of more than 10,000,000 characters"
TOO_MANY = "compares or writes a value of more than 200,000 items"


def nest(*values: str) -> str:
    """Return a template whose variables `n.x` and `n.y` hold 2^60 items, of which 60 are different."""
    changes = "".join(f"{{% set {value} %}}" for value in values or ("n.x = [n.x, n.x]",))
    return f"{{% set n = namespace(x=(), y=()) %}}{{% for i in range(60) %}}{changes}{{% endfor %}}"


TUPLES, PAIR = nest("n.x = (n.x, n.x)"), nest("n.x = [n.x, n.x]", "n.y = [n.y, n.y]")
LARGE = "{% set a = 'x' * 9000000 %}"
MACRO = "{% set m = namespace(x=1) %}{% macro g() %}{% set m.x = varargs %}{% endmacro %}"
WORK: dict[str, tuple[str, str]] = {
    "text of a list that holds another twice": (nest() + "{{ n.x }}", TOO_MANY),
    "text of an object": (nest("n.x = {'a': n.x, 'b': n.x}") + "{{ n.x }}", TOO_MANY),
    "text of items": (nest() + "{{ {'a': n.x}.items() }}", TOO_MANY),
    "text of the arguments of a macro": (
        MACRO + "{% for i in range(60) %}{{ g([m.x], [m.x]) }}{% endfor %}{{ m.x }}",
        TOO_MANY,
    ),
    "a joined text of such a list": (nest() + "{{ n.x ~ 'a' }}", TOO_MANY),
    "a formatted list": (nest() + "{{ '%s' % n.x }}", TOO_MANY),
    "JSON of such a list": (nest() + "{{ n.x | tojson }}", TOO_MANY),
    "the filter string": (nest() + "{{ n.x | string }}", TOO_MANY),
    "the filter upper": (nest() + "{{ n.x | upper }}", TOO_MANY),
    "the filter join": (nest() + "{{ n.x | join }}", TOO_MANY),
    "the filter sort": (nest() + "{{ n.x | sort }}", TOO_MANY),
    "a test of its letters": (nest() + "{{ n.x is lower }}", TOO_MANY),
    "a comparison of such lists": (PAIR + "{{ n.x == n.y }}", TOO_MANY),
    "a chain of comparisons": (PAIR + "{{ n.x == n.y == 1 }}", TOO_MANY),
    "a test of such lists": (PAIR + "{{ n.x is eq(n.y) }}", TOO_MANY),
    "a search in such a list": (PAIR + "{{ n.x in [n.y] }}", TOO_MANY),
    "the place in such a list": (PAIR + "{{ [n.y].index(n.x) }}", TOO_MANY),
    "a tuple as a key": (TUPLES + "{{ {n.x: 1} }}", TOO_MANY),
    "a tuple as an index": (TUPLES + "{{ {}[n.x] }}", TOO_MANY),
    "a tuple as the key to get": (TUPLES + "{{ {}.get(n.x) }}", TOO_MANY),
    "a tuple as a key of a list of pairs": (TUPLES + "{{ dict([(n.x, 1)]) }}", TOO_MANY),
    "one text many times in a list": (LARGE + "{{ [a] * 10000 }}", TOO_LARGE),
    "one text many times in items": (LARGE + "{{ ([a] * 10000) | select | join }}", TOO_LARGE),
    "one text many times in an object": ("{{ ('%(a)s' * 100000) % {'a': 'x' * 1000000} }}", TOO_LARGE),
    "equal texts in loops": (
        LARGE + "{% set b = a ~ 'x' %}{% set a = a ~ 'x' %}" + LOOP + "{% if a == b %}{% endif %}{% endfor %}",
        ENDLESS,
    ),
    "searched texts in loops": (LARGE + LOOP + "{% if 'xy' in a %}{% endif %}{% endfor %}", ENDLESS),
    "counted texts in loops": (LARGE + LOOP + "{% if a.count('xy') %}{% endif %}{% endfor %}", ENDLESS),
    "words in loops": (LARGE + LOOP + "{% if (a | wordcount) == 2 %}{% endif %}{% endfor %}", ENDLESS),
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
    "a generator is true and has no length": (
        "{% if [] | select %}a{% endif %}{{ [1, 2] | select | list }}{{ [2, 1] | select | sort }}",
        "a[1, 2][1, 2]",
    ),
    "comparisons": (
        "{{ 1 < 2 <= 2 }}{{ 'a' in 'ba' }}{{ 3 not in [1] }}{{ nothing == 'a' }}{{ 'a' in nothing }}{{ 1 != 2 }}",
        "TrueTrueTrueFalseFalseTrue",
    ),
    "comparisons of lists": ("{{ 2 in [1, 2] | select }}{{ (1,) >= (2,) }}{{ 'a' is in(['a']) }}", "TrueFalseTrue"),
    "objects": ("{{ {('a', 1): 2}[('a', 1)] }}{{ dict([('a', 1)]).a }}{{ {'a': [1, {}]} }}", "21{'a': [1, {}]}"),
    "targets": ("{% for a, b in [(1, 2)] %}{% set c, d = b, a %}{{ c }}{{ d }}{% endfor %}", "21"),
    "macros": ("{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(messages[0].content) }}", "<hi>"),
    "a namespace does not show its values": ("{{ namespace(a=1) }}", "<Namespace>"),
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


def test_the_size_of_indented_json_is_checked_before_it_is_made() -> None:
    value: list[Any] = [1] * 999
    for _ in range(200):
        value = [value]

    with pytest.raises(template_limits.BudgetError, match=TOO_LARGE):
        template_values.to_json(value, indent=99)
    assert len(template_values.to_json(value)) == 3 * 999 + 400


def test_invalid_templates_are_described() -> None:
    with pytest.raises(ChatTemplateError, match="is not a valid Jinja template: line 2: "):
        ChatTemplate("a\n{% for %}", {})
    with pytest.raises(ChatTemplateError, match="nested too deeply"):
        ChatTemplate("{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}", {})
    with pytest.raises(ChatTemplateError, match=r": keyword argument repeated: a$"):
        ChatTemplate("{{ f(a=1, a=2) }}", {})
    with pytest.raises(ChatTemplateError, match=r": too many statically nested blocks$"):
        ChatTemplate("{% for m in messages %}" * 25 + "{% endfor %}" * 25, {})
    with pytest.raises(ChatTemplateError, match="is not a valid Jinja template: Exceeds the limit"):
        ChatTemplate("{{ " + "9" * 5000 + " }}", {})
    assert issubclass(template_limits.BudgetError, TemplateError)
