"""Sandbox of chat templates: Jinja as `transformers` configures it, with a budget and without access to Python.

A template comes with a model that others published. It cannot reach anything but the messages, and cannot loop or grow
without end: loops, calls, comparisons and texts are charged against a budget. The budget counts work, not time, so that
a template fails on all machines or on none.

A template sees no clock either: `strftime_now` of `transformers` is not defined, because the tokens of a conversation
must not depend on the day.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, NoReturn

from jinja2 import Undefined, nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Joiner
from jinja2.visitor import NodeTransformer

from trainingjob_trainer.data.chat.template_limits import (
    MAX_COST,
    STEP_COST,
    BudgetError,
    bounded_range,
    check_filter_join,
    check_filter_replace,
    check_format,
    check_indent,
    check_power,
    check_product,
    check_size,
    check_text_method,
    checked,
)
from trainingjob_trainer.data.chat.template_values import (
    COMPARISONS,
    SCANNED_METHODS,
    OpaqueNamespace,
    check_formatted,
    comparison_cost,
    measure_text,
    measure_work,
    read_items,
    to_json,
)

# fmt: off
ALLOWED_FILTERS = frozenset({
    "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "groupby",
    "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr",
    "replace", "reverse", "round", "safe", "select", "selectattr", "sort", "string", "sum", "title", "trim",
    "unique", "upper", "wordcount",
})
"""Filters whose result is not much larger than their input, or whose size is checked before the result is made."""
SHALLOW_FILTERS = frozenset({
    "attr", "count", "d", "default", "first", "items", "last", "length", "list", "map", "reject", "rejectattr",
    "reverse", "select", "selectattr",
})
"""Filters that do not read what is inside of the items of a list or object."""
ORDERING_FILTERS = frozenset({"dictsort", "groupby", "max", "min", "sort", "sum", "unique"})
"""Filters that compare items, and make no text of them."""
TEXT_TESTS = frozenset({"lower", "upper"})
"""Tests that make a text of their input."""
ALLOWED_TEXT_METHODS = frozenset({
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdecimal", "isdigit",
    "islower", "isnumeric", "isspace", "isupper", "join", "lower", "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines",
    "startswith", "strip", "swapcase", "title", "upper",
})
# fmt: on

REPEATED = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.Block)
"""Parts of a template that may run many times."""

type GenerationTracker = Callable[[str], None]


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Environment of one chat template. `generation_tracker` is called with the text of each `generation` block."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, LoopControlExtension],
            optimized=False,  # constants would be computed outside of the budget
            finalize=self._charge_output,
        )
        self.cost = 0
        self.generation_tracker: GenerationTracker | None = None
        self.has_generation_tag = False
        """Whether a template has the tag `generation`."""
        self.globals = {
            "range": bounded_range,
            "dict": dict,
            "cycler": Cycler,
            "joiner": Joiner,
            "namespace": OpaqueNamespace,
            "raise_exception": _raise_exception,
        }
        filters = {name: FILTERS[name] for name in ALLOWED_FILTERS} | {
            "join": checked(FILTERS["join"], check_filter_join),
            "replace": checked(FILTERS["replace"], check_filter_replace),
            "indent": checked(FILTERS["indent"], check_indent),
            "tojson": to_json,
        }
        self.filters = {name: self._charged_filter(name, function) for name, function in filters.items()}
        tests: dict[str, Any] = TESTS
        self.tests = {name: self._charged_test(name, function) for name, function in tests.items()}

    def charge(self, cost: int) -> None:
        """Add to the cost of the conversation.

        Raises:
            BudgetError: the cost exceeds the budget.
        """
        self.cost += cost
        if self.cost > MAX_COST:
            raise BudgetError("loops without end, or makes too much text")

    def charge_value(self, value: Any) -> Any:
        """Charge for a value, and return it."""
        size = len(value) if isinstance(value, (str, list, tuple, dict)) else 0
        check_size(size)
        self.charge(STEP_COST + size)
        return value

    def charge_key(self, value: Any) -> Any:
        """Charge for the hash of a key, which reads all of a tuple, and return the key."""
        return self.charge_operand(value) if isinstance(value, tuple) else value

    def charge_operand(self, value: Any) -> Any:
        """Charge for reading all of a value, and return it."""
        self.charge(measure_work(value))
        return value

    def compare(self, left: Any, name: str, right: Any) -> Any:
        """Return the result of a comparison, and charge for it."""
        right = read_items(right)
        self.charge(comparison_cost(name, left, right))
        return COMPARISONS[name](left, right)

    def join_text(self, *parts: Any) -> str:
        """Return the text of `a ~ b`."""
        return str(self.charge_value("".join(map(self._make_text, parts))))

    def slice_value(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """Return `value[start:stop:step]`."""
        return self.charge_value(value[start:stop:step])

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return `obj[argument]`."""
        return super().getitem(obj, self.charge_key(argument))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may read an attribute: of numbers none, of texts bounded methods."""
        if isinstance(obj, (int, float, bytes)) or (isinstance(obj, str) and attr not in ALLOWED_TEXT_METHODS):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Raise an error about an attribute that a template may not read. Jinja would show an empty text."""
        raise SecurityError(f"reads the attribute `{attribute}` of {type(obj).__name__}, which it must not")

    def wrap_str_format(self, value: Any) -> None:
        """Return no replacement of `str.format`, which is not allowed."""
        del value

    def call(__self, __context: Context, __obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call an object, and charge for the result."""
        if getattr(__obj, "__self__", None) is __self:  # a call that `_parse` inserted
            return __obj(*args)
        check_text_method(__obj, args)
        __self._charge_scan(__obj, args)
        return __self.charge_value(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator whose result may be much larger than its operands."""
        if operator == "*":
            check_product(left, right)
        elif operator == "**":
            check_power(left, right)
        elif operator == "%":
            check_format(left)
            check_formatted(left, right)
        return self.charge_value(super().call_binop(context, operator, left, right))

    def _charge_output(self, value: Any) -> Any:
        return value if isinstance(value, Undefined) else self._make_text(value)

    def _make_text(self, value: Any) -> str:
        """Return the text of a value, and charge for it before it is made."""
        self.charge(measure_text(value))
        return str(value)

    def _charge_scan(self, method: Any, args: tuple[Any, ...]) -> None:
        """Charge for a call that reads all of a text, or of its arguments."""
        if method is dict or getattr(method, "__name__", "") in SCANNED_METHODS:
            args = (getattr(method, "__self__", None), *args)
        else:
            args = tuple(arg for arg in args if isinstance(arg, tuple))  # its hash may be needed
        self.charge(sum(map(measure_work, args)))

    def _charged_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that charges for its input and its result. A generator has no size, so its items are read."""
        measure = measure_work if name in ORDERING_FILTERS else measure_text

        @wraps(function)
        def charged(*args: Any, **kwargs: Any) -> Any:
            if name in (*ORDERING_FILTERS, "join"):
                args = tuple(map(read_items, args))
            if name not in SHALLOW_FILTERS:
                self.charge(sum(map(measure, (*args, *kwargs.values()))))
            return self.charge_value(function(*args, **kwargs))

        return charged

    def _charged_test(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a test that charges for its input."""

        @wraps(function)
        def charged(*args: Any, **kwargs: Any) -> Any:
            if name in TEXT_TESTS:
                self.charge(measure_text(args[0]))
            elif len(args) > 1:
                args = tuple(map(read_items, args))
                self.charge(comparison_cost("in" if name == "in" else "eq", *args[:2]))
            return function(*args, **kwargs)

        return charged

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = Parser(self, source, name, filename).parse()
        bodies: list[Any] = list(
            tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.Block))
        )
        for node in bodies:
            text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
            step = nodes.ExprStmt(_call_sandbox("charge", [nodes.Const(STEP_COST + text)]))
            node.body.insert(0, step.set_lineno(node.lineno))
        return _Guard().visit(tree).set_environment(self)  # type: ignore[no-any-return]


class GenerationTag(Extension):
    """The tag `generation` of `transformers`, around the texts that the model writes."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block as a call with its text."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        self.environment.has_generation_tag = True  # type: ignore[attr-defined]
        return nodes.CallBlock(self.call_method("_track"), [], [], body).set_lineno(line)

    def _track(self, caller: Callable[[], str]) -> str:
        text = caller()
        tracker = self.environment.generation_tracker  # type: ignore[attr-defined]
        if tracker:
            tracker(text)
        return text


class _Guard(NodeTransformer):
    """Replaces expressions that Jinja computes without the sandbox: `a ~ b`, `a[b:c]`, comparisons and keys."""

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802  the name of the node
        self.generic_visit(node)
        for pair in node.items:
            pair.key = _call_sandbox("charge_key", [pair.key])
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802  the name of the node
        self.generic_visit(node)
        if len(node.ops) == 1:
            (operand,) = node.ops
            arguments = [node.expr, nodes.Const(operand.op), operand.expr]
            return _call_sandbox("compare", arguments).set_lineno(node.lineno)
        node.expr = _call_sandbox("charge_operand", [node.expr])
        for operand in node.ops:
            operand.expr = _call_sandbox("charge_operand", [operand.expr])
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802  the name of the node
        self.generic_visit(node)
        return _call_sandbox("join_text", node.nodes).set_lineno(node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802  the name of the node
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = [bound or nodes.Const(None) for bound in (node.arg.start, node.arg.stop, node.arg.step)]
        return _call_sandbox("slice_value", [node.node, *bounds]).set_lineno(node.lineno)


def _call_sandbox(method: str, arguments: Iterable[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), list(arguments), [], None, None)


def _raise_exception(message: str) -> NoReturn:
    """Raise the error of a template that refuses a conversation."""
    raise TemplateRuntimeError(message)
