"""Fault injection on the agent's own host, requested by a drill.

Faults are real, not simulated: the process stops, the bit is flipped, the operator gets no report. The recovery is the
same as after a real fault.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

from trainingjob_agent.checkpoint_layout import (
    LINEAGE_PREFIX,
    MANIFEST_FILE,
    QUARANTINE_SUFFIX,
    StepName,
    parse_lineage,
    parse_step_name,
)
from trainingjob_agent.operator_session import Reporter
from trainingjob_agent.state import DrillReported
from trainingjob_agent.trainer_process import Child
from trainingjob_api.drill import Drill
from trainingjob_api.drill_kinds import DrillKind

LOG = logging.getLogger(__name__)
STOPPED_SECONDS, RUNNING_SECONDS = 0.15, 0.1
"""Seconds for which a slow trainer is stopped and running, in turn."""
SETTLE_SECONDS = 1.0
"""Seconds in which the peers of a stopped trainer may finish a save to which it has already contributed."""
MIN_CHECKPOINTS = 2
"""Minimum number of checkpoints before the newest may be damaged."""


async def inject_fault(
    drill: Drill, child: Child, reporter: Reporter, checkpoints: Path, report_result: Callable[[DrillReported], None]
) -> None:
    """Inject the fault, report it before its effects show, and end it if it is temporary."""
    match drill.kind:
        case DrillKind.HANG:
            child.pause()
            report_result(DrillReported(drill.id))
        case DrillKind.SLOW:
            report_result(DrillReported(drill.id))
            await slow_down(child, drill.seconds)
        case DrillKind.NAN:
            child.inject_nan()
            report_result(DrillReported(drill.id))
        case DrillKind.CORRUPT_CHECKPOINT:
            child.pause()  # no save can complete without this process
            await asyncio.sleep(SETTLE_SECONDS)
            why = await asyncio.to_thread(corrupt_newest_checkpoint, checkpoints)
            report_result(DrillReported(drill.id, why))
            if why:
                child.resume()
            else:
                child.kill()
        case DrillKind.PARTITION:
            report_result(DrillReported(drill.id))
            reporter.suspend(drill.seconds)
        case DrillKind.KILL_SLICE | DrillKind.KILL_HOST | DrillKind.PREEMPT | DrillKind.OPERATOR_DOWN:
            report_result(DrillReported(drill.id, "the operator injects this drill, not a host"))
        case _:
            assert_never(drill.kind)


async def slow_down(child: Child, seconds: float) -> None:
    """Stop and resume a trainer repeatedly; it is left running."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until and child.is_alive:
        child.pause()
        await asyncio.sleep(STOPPED_SECONDS)
        child.resume()
        await asyncio.sleep(RUNNING_SECONDS)


def corrupt_newest_checkpoint(checkpoints: Path) -> str:
    """Flip a bit in the largest file of the newest checkpoint; return the reason if that fails, empty: done."""
    try:
        saved = _list_saved(checkpoints)
        if len(saved) < MIN_CHECKPOINTS:
            return f"{len(saved)} saved steps: at least {MIN_CHECKPOINTS} are needed, so that an intact one remains"
        *_, newest = max(saved, key=lambda one: (one[0], one[1].step, one[1].generation))
        files = [
            path for path in newest.rglob("*") if path.is_file() and path.name != MANIFEST_FILE and path.stat().st_size
        ]
        path = max(files, key=lambda path: path.stat().st_size, default=None)
        if path is None:
            return f"the saved step has no files in {newest}"
        with path.open("rb+") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))
    except OSError as error:
        return f"the saved step cannot be damaged: {error}"
    LOG.warning("a drill has damaged a saved step file=%s", path)
    return ""


def _list_saved(checkpoints: Path) -> list[tuple[int, StepName, Path]]:
    """Return lineage, step and folder of each checkpoint; other names are ignored."""
    found = []
    for path in checkpoints.glob(f"{LINEAGE_PREFIX}*/*/{MANIFEST_FILE}"):
        folder = path.parent
        lineage, step = parse_lineage(folder.parent.name), parse_step_name(folder.name)
        is_quarantined = folder.with_name(folder.name + QUARANTINE_SUFFIX).exists()
        if lineage is not None and step is not None and not is_quarantined:
            found.append((lineage, step, folder))
    return found
