"""How long training stands still when something dies, on processes of this machine: each kind of loss, many times.

The job is the demo's, without a cluster; `RUNS` says how often each loss is made. A pause runs from the kill to the
first new step, as the trainer's own metrics lines tell it, and is given beyond the length of that step. The reference
is a recreation of everything, as a job without an agent has it: all processes are killed and started again.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import track

from e2e.benchmarks.table import Figure, publish
from e2e.product import load_example

TRAININGJOB = str(Path(sys.executable).with_name("trainingjob"))
RUNS = int(os.environ.get("RUNS", "20"))
SPACING = 120
"""Steps between two losses: the slice that was lost is back by then, and a checkpoint was committed."""
STEPS = 1_000_000
PATIENCE_SECONDS = 300.0
GOALS = {"process killed": 1.5, "slice killed": 1.5, "slice back": 2.0}
"""Seconds beyond the length of one step, with a standby."""
FLOORS = {"detecting": 0.13, "restoring": 0.3, "compiling": 0.08}
"""What each phase took at least where it was measured by itself."""

type Line = dict[str, Any]


@dataclass(frozen=True)
class Pause:
    """A time without training. Seconds beyond one step, and by what the attempt after it did."""

    seconds: float
    lost_steps: int
    phases: dict[str, float]


class Run:
    """`trainingjob run` in a folder, as somebody who watches it sees it."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        """Write the job down; nothing is started yet."""
        self._folder = folder
        spec = load_example(
            "demo",
            metrics__everySteps=1,
            training__steps=STEPS,
            checkpoint__save={"everySteps": 20},
            evaluation=[],
            elastic={"growCooldown": "1s", "maxRestarts": 10_000},
        )
        (folder / "demo.yaml").write_text(yaml.safe_dump(spec))
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or go on with what it saved."""
        command = [TRAININGJOB, "run", str(self._folder / "demo.yaml"), "--slices", "2", "--dir", str(self._folder)]
        with (self._folder / "run.log").open("ab") as log:
            self._process = subprocess.Popen([*command, *self._options], stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """End all its processes at once."""
        if self._process:
            self._process.kill()
            self._process.wait()
        for pid in self._list_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_trainer(self, slice_number: int, host: int) -> float:
        """End one host's trainer, and return when that was."""
        found = [
            pid
            for pid, environment in self._list_processes().items()
            if environment.get("TRAININGJOB_EVENTS_FD")
            and int(environment["TRAININGJOB_SLICE_OFFSET"]) + int(environment["TRAININGJOB_JOB_INDEX"]) == slice_number
            and int(environment["TRAININGJOB_HOST"]) == host
        ]
        oldest = min(found, key=_started)  # the other one is its standby
        os.kill(oldest, signal.SIGKILL)
        return time.time()

    def lines(self) -> list[Line]:
        """Return what was written of each step, oldest first."""
        path = next(self._folder.rglob("metrics.jsonl"), None)
        text = path.read_text() if path else ""
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [line for line in map(json.loads, whole) if "loss" in line]

    def attempts(self) -> dict[int, dict[str, Any]]:
        """Return the attempts of the status by generation."""
        job = json.loads((self._folder / "job.json").read_text())
        return {one["generation"]: one for one in job["status"].get("attempts", [])}

    def wait_for_step(self, step: int, generation: int = 0) -> Line:
        """Return the line of the first step from one on, of a generation above another."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            for line in self.lines():
                if line["generation"] > generation and line["step"] >= step:
                    return line
            if self._process and self._process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"no step {step} above generation {generation}; see {self._folder}/run.log and logs/")

    def _list_processes(self) -> dict[int, dict[str, str]]:
        """Return the environments of its hosts' processes by their ids."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's
                content = path.read_bytes()
                if str(self._folder).encode() in content and b"TRAININGJOB_HOST=" in content:
                    pairs = (item.partition("=") for item in content.decode(errors="replace").split("\0"))
                    found[int(path.parent.name)] = {name: value for name, _, value in pairs}
        return found


def _started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@contextlib.contextmanager
def running(options: Sequence[str] = ()) -> Iterator[Run]:
    """Run the job while the context lasts."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = Run(Path(folder), options)
        run.start()
        try:
            yield run
        finally:
            run.kill()


def kill_processes(console: Console) -> list[Pause]:
    """Kill the trainer of the last host again and again."""
    pauses = []
    with running() as run:
        line = run.wait_for_step(SPACING // 2)
        for _ in track(range(RUNS), description="process killed", console=console):
            line = run.wait_for_step(line["step"] + SPACING // 2, line["generation"] - 1)
            killed = run.kill_trainer(1, 1)
            line = run.wait_for_step(1, line["generation"])
            pauses.append(measure(run, line["generation"], killed))
    return pauses


def kill_slices(console: Console) -> tuple[list[Pause], list[Pause]]:
    """Kill all processes of slice 1 again and again; return the pauses of the losses and of the returns."""
    steps = range(SPACING // 2, SPACING // 2 + RUNS * SPACING, SPACING)
    options = [word for step in steps for word in ("--kill-slice", "1", "--at-step", str(step))]
    lost, back = [], []
    with running(options) as run:
        first = run.wait_for_step(1)["generation"]
        for number in track(range(RUNS), description="slice killed", console=console):
            shrunk = run.wait_for_step(1, first + 2 * number)["generation"]
            grown = run.wait_for_step(1, shrunk)["generation"]
            for generation, pauses in ((shrunk, lost), (grown, back)):
                pauses.append(measure(run, generation, last_before(run, generation)["time"]))
    return lost, back


def recreate_all(console: Console) -> list[Pause]:
    """Kill everything and start it again, again and again."""
    pauses = []
    with running() as run:
        line = run.wait_for_step(SPACING // 2)
        for _ in track(range(RUNS), description="all recreated", console=console):
            line = run.wait_for_step(line["step"] + SPACING // 4, line["generation"] - 1)
            run.kill()
            killed = time.time()
            run.start()
            line = run.wait_for_step(1, line["generation"])
            pauses.append(measure(run, line["generation"], killed))
    return pauses


def last_before(run: Run, generation: int) -> Line:
    """Return the last line that an earlier generation wrote."""
    return [line for line in run.lines() if line["generation"] < generation][-1]


def measure(run: Run, generation: int, killed: float) -> Pause:
    """Return the pause before a generation's first step, as soon as the status tells of that step too."""
    own = run.wait_for_step(1, generation - 1)
    second = run.wait_for_step(own["step"] + 2, generation - 1)
    step_seconds = (second["time"] - own["time"]) / 2
    deadline = time.monotonic() + PATIENCE_SECONDS
    attempt = run.attempts().get(generation, {})
    while "recoverySeconds" not in attempt and time.monotonic() < deadline:
        time.sleep(0.2)
        attempt = run.attempts().get(generation, {})
    before = run.attempts().get(generation - 1, {})
    phases = {**attempt.get("seconds", {}), "detecting": before.get("seconds", {}).get("detecting", 0.0)}
    for later in ("training", "resizing", "saving"):
        phases.pop(later, None)
    return Pause(own["time"] - killed - step_seconds, attempt.get("lostSteps") or 0, phases)


def summarise(name: str, pauses: Sequence[Pause], goal: float) -> Iterator[Figure]:
    """Yield the median and the longest pause, the phases' medians, and the steps lost."""
    seconds = [pause.seconds for pause in pauses]
    yield Figure(f"{name}: median", statistics.median(seconds), "s", goal)
    yield Figure(f"{name}: longest", max(seconds), "s", goal)
    for phase in sorted({phase for pause in pauses for phase in pause.phases}):
        spent = statistics.median(pause.phases.get(phase, 0.0) for pause in pauses)
        yield Figure(f"{name}: {phase}", spent, "s", FLOORS.get(phase, goal))
    yield Figure(f"{name}: lost steps", statistics.median(pause.lost_steps for pause in pauses), "steps", 20.0)


def main() -> None:
    """Measure all and publish."""
    console = Console()
    processes = kill_processes(console)
    lost, back = kill_slices(console)
    everything = recreate_all(console)
    reference = statistics.median(pause.seconds for pause in everything)
    figures = [
        *summarise("process killed", processes, GOALS["process killed"]),
        *summarise("slice killed", lost, GOALS["slice killed"]),
        *summarise("slice back", back, GOALS["slice back"]),
        *summarise("all recreated", everything, reference),
        Figure("slice killed, all recreated", statistics.median(one.seconds for one in lost), "s", reference),
    ]
    publish("restart", figures, console)


if __name__ == "__main__":
    main()
