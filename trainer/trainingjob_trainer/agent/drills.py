"""What an agent does to its own host when a drill asks for it.

Nothing here is simulated: the process stops, the bit is flipped, the operator hears nothing. What follows is what would
follow in earnest.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

from trainingjob_api.drill import Drill
from trainingjob_api.drill_kinds import DrillKind
from trainingjob_trainer.agent.child import Child
from trainingjob_trainer.agent.reporter import Reporter
from trainingjob_trainer.agent.state import Struck
from trainingjob_trainer.files import parse_number
from trainingjob_trainer.saving.integrity import FILE

LOG = logging.getLogger(__name__)
STOPPED_SECONDS, RUNNING_SECONDS = 0.15, 0.1
"""For how long in turn a slow trainer is stopped and goes on."""
SETTLE_SECONDS = 1.0
"""For how long a stopped trainer's peers may still finish a save that it has done its part of."""
STEPS_TO_SPARE = 2
"""Saved steps that there must be before the newest is damaged."""


async def strike(
    drill: Drill, child: Child, reporter: Reporter, checkpoints: Path, tell: Callable[[Struck], None]
) -> None:
    """Make the fault, say so before its effects are seen, and end what lasts."""
    match drill.kind:
        case DrillKind.HANG:
            child.freeze()
            tell(Struck(drill.id))
        case DrillKind.SLOW:
            tell(Struck(drill.id))
            await slow_down(child, drill.seconds)
        case DrillKind.NAN:
            child.poison()
            tell(Struck(drill.id))
        case DrillKind.CORRUPT_CHECKPOINT:
            child.freeze()  # no save is finished without it
            await asyncio.sleep(SETTLE_SECONDS)
            why = await asyncio.to_thread(damage_newest, checkpoints)
            tell(Struck(drill.id, why))
            if why:
                child.thaw()
            else:
                child.kill()
        case DrillKind.PARTITION:
            tell(Struck(drill.id))
            reporter.fall_silent(drill.seconds)
        case DrillKind.KILL_SLICE | DrillKind.KILL_HOST | DrillKind.PREEMPT | DrillKind.OPERATOR_DOWN:
            tell(Struck(drill.id, "no host makes this drill: the operator does"))
        case _:
            assert_never(drill.kind)


async def slow_down(child: Child, seconds: float) -> None:
    """Stop a trainer again and again; it is left running."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until and child.lives:
        child.freeze()
        await asyncio.sleep(STOPPED_SECONDS)
        child.thaw()
        await asyncio.sleep(RUNNING_SECONDS)


def damage_newest(checkpoints: Path) -> str:
    """Flip a bit in the largest file of the newest saved step; return why that cannot be done, empty where it was."""
    try:
        saved = _list_saved(checkpoints)
        if len(saved) < STEPS_TO_SPARE:
            return f"of {len(saved)} saved steps none would be left to go on from"
        *_, newest = max(saved)
        files = [path for path in newest.rglob("*") if path.is_file() and path.name != FILE and path.stat().st_size]
        path = max(files, key=lambda path: path.stat().st_size, default=None)
        if path is None:
            return f"nothing of the saved step is left in {newest}"
        with path.open("rb+") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))
    except OSError as error:
        return f"the saved step cannot be damaged: {error}"
    LOG.warning("a drill has damaged a saved step file=%s", path)
    return ""


def _list_saved(checkpoints: Path) -> list[tuple[int, int, Path]]:
    """Return the lineage, the number and the folder of each saved step; other names are nobody's steps."""
    found = []
    for path in checkpoints.glob(f"lineage-*/*/{FILE}"):
        lineage = parse_number(path.parent.parent.name.removeprefix("lineage-"))
        step = parse_number(path.parent.name)
        if lineage is not None and step is not None:
            found.append((lineage, step, path.parent))
    return found
