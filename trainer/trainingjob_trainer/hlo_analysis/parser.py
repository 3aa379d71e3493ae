"""Parser for XLA's text of an optimized program: computations, instructions, and how often each of them runs.

XLA's own cost analysis counts the body of a loop once, and XLA has no public parser for this text. This one reads only
what the compiled training step needs, on CPU and TPU: calls, fusions, and loops with a constant number of iterations.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"(?:branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.\-]+))")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_COMMENT = re.compile(r"/\*.*?\*/")
_BITS = {"pred": 8, "token": 0, "opaque": 0}
_NUMBERED = re.compile(r"[a-z]+(\d+)")
"""Types whose name begins with their bits, such as `bf16`, `s4`, `c64`, `f8e4m3fn` and `f4e2m1fn`."""
_PASS_THROUGH = ("copy", "bitcast", "convert", "copy-start", "copy-done", "optimization-barrier")
"""Instructions whose result is the value of their first operand."""


@dataclass(frozen=True)
class Array:
    """The shape of one array."""

    kind: str
    dims: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of its elements, without the padding of its layout."""
        size = 1
        for dim in self.dims:
            size *= dim
        return -(-size * _bits(self.kind) // 8)


def _bits(kind: str) -> int:
    """Return the bits of one element of a type.

    Raises:
        ValueError: XLA has no such type.
    """
    if kind in _BITS:
        return _BITS[kind]
    if match := _NUMBERED.match(kind):
        return int(match[1])
    raise ValueError(f"the type {kind} has no known size")


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    literal: str
    """The text in the parentheses: the value of a constant, the number of a parameter."""
    is_root: bool

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        """Return the arrays of its result; for a tuple, in order."""
        return tuple(
            Array(kind, tuple(int(dim) for dim in dims.split(",") if dim)) for kind, dims in _ARRAY.findall(self.shape)
        )

    @property
    def called(self) -> tuple[str, ...]:
        """Return the computations that it calls; for a loop, the condition too."""
        names = _CALLED.findall(self.attributes)
        for branches, branch in _BRANCHES.findall(self.attributes):
            names += [name.strip().lstrip("%") for name in branches.split(",")] if branches else [branch]
        return tuple(names)

    def get_attribute(self, attribute: str) -> str:
        """Return the text of an attribute up to the next comma outside of brackets; empty: it has none."""
        match = re.search(rf"(?:^|[ ,]){attribute}=", self.attributes)
        return _until_comma(self.attributes[match.end() :]) if match else ""


@dataclass(frozen=True)
class Computation:
    """Instructions by name."""

    name: str
    instructions: Mapping[str, Instruction]

    @cached_property
    def root(self) -> Instruction:
        """Return the instruction whose result is the computation's result."""
        return next(instruction for instruction in self.instructions.values() if instruction.is_root)

    def producer(self, name: str) -> Instruction | None:  # None: it is not an instruction of this computation
        """Return the instruction that produces a value, past copies and casts."""
        found = self.instructions.get(name)
        while found is not None and found.opcode in _PASS_THROUGH:
            found = self.instructions.get(found.operands[0])
        return found


class HloProgram:
    """A compiled program.

    `runs` maps each computation to how often it runs in one run of the program. `fused` names the computations that are
    fused into one instruction.
    """

    def __init__(self, text: str) -> None:
        self.computations: dict[str, Computation] = {}
        self.fused: set[str] = set()
        self._entry = ""
        for is_entry, computation in _parse(text):
            self.computations[computation.name] = computation
            if is_entry:
                self._entry = computation.name
        self.runs: dict[str, int] = defaultdict(int)
        self._walk(self._entry, 1)

    def _walk(self, name: str, times: int) -> None:
        computation = self.computations[name]
        self.runs[name] += times
        for instruction in computation.instructions.values():
            iterations = self._trip_count(computation, instruction) if instruction.opcode == "while" else 1
            for called in instruction.called:
                if instruction.opcode == "fusion":
                    self.fused.add(called)
                if called in self.computations:
                    self._walk(called, times * iterations)

    def _trip_count(self, computation: Computation, loop: Instruction) -> int:
        """Return the iterations of a loop; 1 if they are not constant, as in sorting, which has no matmul."""
        known = _TRIPS.search(loop.attributes)
        if known:
            return int(known[1])
        condition = self.computations[loop.get_attribute("condition").lstrip("%")]
        body = self.computations[loop.get_attribute("body").lstrip("%")]
        test = condition.producer(condition.root.name)
        if test is None or test.opcode != "compare" or test.get_attribute("direction") != "LT":
            return 1
        counter, limit = (condition.producer(operand) for operand in test.operands)
        if counter is None or limit is None or counter.opcode != "get-tuple-element" or limit.opcode != "constant":
            return 1
        place = int(counter.get_attribute("index"))
        first = self._initial_counter(computation, computation.producer(loop.operands[0]), place)
        step = self._counter_increment(body, place)
        return max(-(-(int(limit.literal) - first) // step), 0)

    def _initial_counter(self, computation: Computation, start: Instruction | None, place: int) -> int:
        """Return the initial value of a loop's counter; XLA makes it 0 nearly always."""
        if start is None or start.opcode != "tuple":
            return 0
        source = computation.producer(start.operands[place])
        return int(source.literal) if source and source.opcode == "constant" else 0

    def _counter_increment(self, body: Computation, place: int) -> int:
        """Return the increment of a loop's counter."""
        root = body.root
        counter = body.producer(root.operands[place]) if root.opcode == "tuple" else None
        if counter is None:
            return 1
        inside = body
        if counter.opcode == "fusion":
            inside = self.computations[counter.called[0]]
            counter = inside.producer(inside.root.name)
        if counter is None or counter.opcode != "add":
            return 1
        sources = (inside.producer(operand) for operand in counter.operands)
        return next((int(source.literal) for source in sources if source and source.opcode == "constant"), 1)


def _parse(text: str) -> Iterator[tuple[bool, Computation]]:
    """Yield the computations of a program, with whether each is the entry."""
    lines: dict[str, Instruction] = {}
    name, is_entry = "", False
    for raw in text.splitlines():
        line = _COMMENT.sub("", raw)
        if not name:
            match = _HEADER.match(line)
            if match and line.endswith("{"):
                name, is_entry, lines = match[1], line.startswith("ENTRY"), {}
        elif line.startswith("}") and not line.startswith("}}"):  # the metadata of a Pallas kernel takes several lines
            yield is_entry, Computation(name, lines)
            name = ""
        else:
            instruction = _parse_instruction(line.strip())
            if instruction:
                lines[instruction.name] = instruction


def _parse_instruction(line: str) -> Instruction | None:  # None: the line holds no instruction
    left, equals, right = line.partition(" = ")
    if not equals:
        return None
    is_root = left.startswith("ROOT ")
    end = _closing_parenthesis(right, 0) + 1 if right.startswith("(") else right.index(" ")
    shape, rest = right[:end], right[end:].lstrip()
    opcode, _, _ = rest.partition("(")
    close = _closing_parenthesis(rest, len(opcode))
    inside = rest[len(opcode) + 1 : close]
    operands = tuple(part.strip().split(" ")[-1].lstrip("%") for part in _split(inside))
    attributes = rest[close + 1 :].lstrip(", ")
    return Instruction(
        left.removeprefix("ROOT ").strip().lstrip("%"), shape, opcode, operands, attributes, inside, is_root
    )


def _closing_parenthesis(text: str, start: int) -> int:
    """Return the position of the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text)


def _split(text: str) -> list[str]:
    """Return the parts of a text between the commas outside of brackets."""
    parts: list[str] = []
    while text:
        part = _until_comma(text)
        parts.append(part)
        text = text[len(part) + 1 :]
    return parts


def _until_comma(text: str) -> str:
    depth = 0
    for place, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            return text[:place]
    return text
