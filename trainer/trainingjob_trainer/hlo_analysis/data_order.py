"""Check that data dependencies alone order a program's collectives.

A device waits for the others in each collective, so that all devices must run them in one order. On CPUs XLA ensures it
with a resource that all collectives of a program share. A program that is loaded again (`thunk_proto_serdes.cc`) has
another resource in the body of each loop. Collectives inside and outside of a loop may then start in any order.
"""

from collections.abc import Iterator

from trainingjob_trainer.hlo_analysis.collective_bytes import COLLECTIVE_KINDS
from trainingjob_trainer.hlo_analysis.parser import Computation, HloProgram, Instruction


def find_unordered_collectives(program: HloProgram) -> Iterator[tuple[Instruction, Instruction]]:
    """Yield each loop or other call that contains collectives, with a collective or call that is independent of it."""
    cache: dict[str, bool] = {}
    for computation in program.computations.values():
        calls = {
            instruction.name: instruction
            for instruction in computation.instructions.values()
            if not _is_collective(instruction)
            and any(_contains_collective(program, called, cache) for called in instruction.called)
        }
        if not calls:
            continue
        operands_of = _transitive_operands(computation)
        others = [*calls.values(), *filter(_is_collective, computation.instructions.values())]
        for place, call in enumerate(calls.values()):
            for other in others[place + 1 :]:
                if call.name not in operands_of[other.name] and other.name not in operands_of[call.name]:
                    yield call, other


def _is_collective(instruction: Instruction) -> bool:
    return instruction.opcode.removesuffix("-start") in COLLECTIVE_KINDS


def _contains_collective(program: HloProgram, name: str, cache: dict[str, bool]) -> bool:
    """Return whether a computation, or one that it calls, has a collective. `cache` holds the results."""
    if name not in cache:
        found = program.computations.get(name)
        cache[name] = found is not None and any(
            _is_collective(instruction)
            or any(_contains_collective(program, called, cache) for called in instruction.called)
            for instruction in found.instructions.values()
        )
    return cache[name]


def _transitive_operands(computation: Computation) -> dict[str, frozenset[str]]:
    """Return the direct and indirect operands of each instruction; operands precede their users."""
    operands_of: dict[str, frozenset[str]] = {}
    for name, instruction in computation.instructions.items():
        operands = [operand for operand in instruction.operands if operand in operands_of]
        operands_of[name] = frozenset(operands).union(*(operands_of[operand] for operand in operands))
    return operands_of
