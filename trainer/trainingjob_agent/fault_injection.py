"""Fault injection on the agent's own host, requested by a drill.

Faults are real, not simulated: the process stops, the bit is flipped, the operator gets no report. The recovery is the
same as after a real fault.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import assert_never

from trainingjob_agent.operator_session import Reporter
from trainingjob_agent.state import DrillReported
from trainingjob_agent.store_requests import corrupt_newest_checkpoint
from trainingjob_agent.trainer_process import Child
from trainingjob_api.drill import Drill
from trainingjob_api.drill_kinds import DrillKind

LOG = logging.getLogger(__name__)
STOPPED_SECONDS, RUNNING_SECONDS = 0.15, 0.1
"""Seconds for which a slow trainer is stopped and running, in turn."""
SETTLE_SECONDS = 1.0
"""Seconds in which the peers of a stopped trainer may finish a save to which it has already contributed."""


async def inject_fault(
    drill: Drill, child: Child, reporter: Reporter, checkpoints: str, report_result: Callable[[DrillReported], None]
) -> None:
    """Inject the fault, report it before its effects show, and end it if it is temporary.

    A fault that fails after its report is reported again, with the error. `checkpoints` is `checkpoint.uri`.
    """
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
            report_result(DrillReported(drill.id))  # a pause longer than `progressTimeout` ends the world
            await asyncio.sleep(SETTLE_SECONDS)
            if error := await asyncio.to_thread(corrupt_newest_checkpoint, checkpoints):
                report_result(DrillReported(drill.id, error))
                child.resume()
            else:
                LOG.warning("a drill has damaged the newest saved step uri=%s", checkpoints)
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
