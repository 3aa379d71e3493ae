"""Whether a program's collectives are in order by its data alone.

A device waits in each collective for the others, so that all must come to them in one order. XLA sees to that on CPUs
with a resource that all collectives of a program share, but a program that is loaded again (`thunk_proto_serdes.cc`)
has another one in the body of each loop: what is in a loop and what is outside may then begin in any order.
"""

from collections.abc import Iterator

from trainingjob_trainer.hlo.program import Computation, Instruction, Program
from trainingjob_trainer.hlo.traffic import KINDS


def find_unordered(program: Program) -> Iterator[tuple[Instruction, Instruction]]:
    """Yield each loop, or other call, that holds collectives with a collective that neither is made of the other."""
    holders: dict[str, bool] = {}
    for computation in program.computations.values():
        calls = {
            one.name: one
            for one in computation.instructions.values()
            if not _is_collective(one) and any(_holds(program, called, holders) for called in one.called)
        }
        if not calls:
            continue
        made_of = _trace(computation)
        rivals = [*calls.values(), *filter(_is_collective, computation.instructions.values())]
        for place, call in enumerate(calls.values()):
            for rival in rivals[place + 1 :]:
                if call.name not in made_of[rival.name] and rival.name not in made_of[call.name]:
                    yield call, rival


def _is_collective(one: Instruction) -> bool:
    return one.opcode.removesuffix("-start") in KINDS


def _holds(program: Program, name: str, holders: dict[str, bool]) -> bool:
    """Return whether a computation, or one that it runs, has a collective. `holders` keeps what is found."""
    if name not in holders:
        found = program.computations.get(name)
        holders[name] = found is not None and any(
            _is_collective(one) or any(_holds(program, called, holders) for called in one.called)
            for one in found.instructions.values()
        )
    return holders[name]


def _trace(computation: Computation) -> dict[str, frozenset[str]]:
    """Return what each instruction is made of, directly or not; operands stand before what is made of them."""
    made_of: dict[str, frozenset[str]] = {}
    for name, one in computation.instructions.items():
        operands = [operand for operand in one.operands if operand in made_of]
        made_of[name] = frozenset(operands).union(*(made_of[operand] for operand in operands))
    return made_of
