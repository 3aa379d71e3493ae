"""Training time blocked by snapshots and saves, from the trainer's metrics lines, on local processes.

The demo's job saves several times in each of `RUNS` worlds; each world ends with a killed trainer. The first save of a
world is shown separately. The goal of a save is 0.3 s plus one in-memory copy of the whole state, measured in the same
run.
"""

import asyncio
import statistics
import time
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
from rich.console import Console
from rich.progress import track

from e2e.benchmarks.figures import Figure, publish
from e2e.benchmarks.pauses import RUNS, TIMEOUT_SECONDS
from e2e.benchmarks.restart_pauses import (
    AWAY_SECONDS,
    HostReadiness,
    generation,
    kill_process,
    lines_of_generation,
    make_spec,
    running_job,
    wait_until_steady,
)
from e2e.history import Line
from e2e.soak.harness import JobHarness
from trainingjob_agent.checkpoint_layout import parse_step_name

SAVES = 3
"""Saves per world, including the first."""
SNAPSHOT_SHARE = 0.01
"""Largest share of the time between two snapshots that a snapshot may block."""
SAVE_SECONDS = 0.3
"""Goal beyond the time of an in-memory copy."""
COPIES = 9


def find_blocked_seconds(lines: Iterable[Line], field: str, group_key: str) -> list[float]:
    """Return the blocked seconds of each save or snapshot of one world: `field`, once per value of `group_key`.

    Each line repeats the value of the newest save or snapshot before it.
    """
    reported = [line for line in lines if line.get(field) is not None]
    return [float(next(same)[field]) for _, same in groupby(reported, key=lambda line: line[group_key])]


def find_save_seconds(lines: Iterable[Line]) -> list[float]:
    """Return the blocked seconds of each save of one world, in order."""
    return find_blocked_seconds(lines, "save_seconds", "save_seconds")


def summarise(worlds: Sequence[Sequence[Line]], every: int, copy_seconds: float) -> list[Figure]:
    """Return the share of time blocked by saves, and by snapshots `every` so many steps, over all worlds."""
    step = statistics.median(line["step_seconds"] for lines in worlds for line in lines)
    waits = [find_blocked_seconds(lines, "snapshot_seconds", "snapshot") for lines in worlds]
    saves = [find_save_seconds(lines) for lines in worlds]
    copied = [seconds for of_world in waits for seconds in of_world]
    limit = copy_seconds + SAVE_SECONDS
    first, later = [of_world[0] for of_world in saves], [seconds for of_world in saves for seconds in of_world[1:]]
    return [
        Figure("step: median", step, "s", step),
        Figure("snapshot: median", statistics.median(copied), "s", SNAPSHOT_SHARE * every * step),
        Figure("snapshot: longest", max(copied), "s", SNAPSHOT_SHARE * every * step),
        Figure("snapshots: share of time", sum(copied) / len(copied) / (every * step), "", SNAPSHOT_SHARE),
        Figure("copy in memory: median", copy_seconds, "s", copy_seconds),
        Figure("first save: median", statistics.median(first), "s", limit),
        Figure("first save: longest", max(first), "s", limit),
        Figure("save: median", statistics.median(later), "s", limit),
        Figure("save: longest", max(later), "s", limit),
        Figure("saves that waited longer", sum(seconds > limit for seconds in later), "saves", len(later)),
    ]


def time_copy(num_bytes: int) -> float:
    """Return the median seconds of an in-memory copy of this size."""
    source, goal = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
    seconds = []
    for _ in range(COPIES):
        start = time.perf_counter()
        np.copyto(goal, source)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure_state(harness: JobHarness) -> int:
    """Return the size of the newest saved step in bytes, which is that of one whole state."""
    found = (path.parent for path in harness.checkpoints.glob("lineage-*/*/integrity.json"))
    saved = max((name.step, path) for path in found if (name := parse_step_name(path.name)))[1]
    return sum(path.stat().st_size for path in saved.rglob("*") if path.is_file())


async def train_and_save(harness: JobHarness) -> list[Line]:
    """Wait until the current world has saved `SAVES` times; return its lines."""
    number = generation(harness)

    def has_saved() -> bool:
        return len(find_save_seconds(lines_of_generation(harness, number))) >= SAVES

    await harness.wait_for("a world that has saved", has_saved, TIMEOUT_SECONDS)
    return lines_of_generation(harness, number)


async def end_world(harness: JobHarness) -> None:
    """Kill a trainer and wait for the next world."""
    before = generation(harness)
    kill_process(harness)
    await harness.wait_for("a new world", lambda: generation(harness) > before, TIMEOUT_SECONDS)


async def measure(console: Console) -> list[Figure]:
    """Return all figures."""
    worlds = []
    # The spec sets no interval, so the plan chooses one.
    async with running_job(AWAY_SECONDS, make_spec(checkpoint__snapshots={})) as harness:
        hosts = HostReadiness(harness)
        for _ in track(range(RUNS), description="worlds that save", console=console):
            await wait_until_steady(harness, hosts)
            worlds.append(await train_and_save(harness))
            await end_world(harness)
        num_bytes = measure_state(harness)
    return summarise(worlds, harness.spec["checkpoint"]["snapshots"]["everySteps"], time_copy(num_bytes))


def main() -> None:
    """Measure and publish."""
    console = Console()
    publish("saves", asyncio.run(measure(console)), console)


if __name__ == "__main__":
    main()
