"""The demo's durations against their goals: first step, shrink and grow on the cluster, shrink without a cluster.

Times of steps come from the trainer's metrics lines, times of faults from the moment of the kill. Both use this
machine's clock.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import yaml
from rich.console import Console

from e2e.benchmarks.figures import Figure, publish
from e2e.demo import SliceOutage, prepare, run_scenario
from e2e.history import Line, read_metrics
from e2e.product import TRAININGJOB, Job, Product, load_example

NAMESPACE = "bench-demo"
FIRST_STEP_GOAL = 40.0
SHRINK_GOAL = 20.0
GROW_GOAL = 60.0
LOCAL_GOAL = 10.0


def main() -> int:
    """Measure all, print the table, return the exit code."""
    console = Console()
    _, product = prepare(console)
    with product.namespace(NAMESPACE):
        figures = measure_cluster(product, console)
    figures += measure_local(console)
    publish("demo", figures, console)
    return 0


def measure_cluster(product: Product, console: Console) -> list[Figure]:
    """Run the demo's job through the loss of slice 1, then of slice 0."""
    job = product.submit(NAMESPACE, load_example("demo", metrics__everySteps=1, training__steps=300))
    result = run_scenario(product, job, faults=(1, 0), console=console)
    lines = training_lines(read_metrics(product, job))
    figures = [Figure("apply to first step", lines[0]["time"] - result.applied, "s", FIRST_STEP_GOAL)]
    for fault in result.faults:
        figures += measure_fault(fault, lines, job)
    return figures


def measure_fault(fault: SliceOutage, lines: list[Line], job: Job) -> list[Figure]:
    """Return the pauses of training at one slice's loss and return, and the lost steps."""
    shrunk = first_of(lines, fault.shrunk_generation)
    grown = first_of(lines, fault.grown_generation)
    last_before = [line for line in lines if line["generation"] < fault.grown_generation][-1]
    attempts = {attempt["generation"]: attempt for attempt in job.status()["attempts"]}
    name = f"slice {fault.slice}"
    return [
        Figure(f"{name} killed to a new step", shrunk["time"] - fault.killed, "s", SHRINK_GOAL),
        Figure(f"{name} back to a step on all slices", grown["time"] - fault.restored, "s", GROW_GOAL),
        Figure(f"{name} back: pause of training", grown["time"] - last_before["time"], "s", SHRINK_GOAL),
        Figure(f"{name} back: lost steps", attempts[fault.grown_generation].get("lostSteps") or 0, "steps", 1.0),
    ]


def training_lines(lines: Iterable[Line]) -> list[Line]:
    """Return the lines of training steps, without those of evaluations."""
    return [line for line in lines if "loss" in line]


def first_of(lines: list[Line], generation: int) -> Line:
    """Return the first training line of a generation."""
    return next(line for line in lines if line["generation"] == generation)


def measure_local(console: Console) -> list[Figure]:
    """Run the demo without a cluster, kill slice 1's processes, and return the pause."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "demo.yaml"
        spec.write_text(yaml.safe_dump(load_example("demo", metrics__everySteps=1)))
        command = [str(TRAININGJOB), "run", str(spec), "--slices", "2", "--dir", folder]
        subprocess.run([*command, "--kill-slice", "1", "--at-step", "60"], check=True)
        text = next(Path(folder).rglob("metrics.jsonl")).read_text()
    lines = training_lines(map(json.loads, text.splitlines()))
    second = next(line["generation"] for line in lines if line["generation"] > lines[0]["generation"])
    last = [line for line in lines if line["generation"] < second][-1]
    return [
        Figure("local: slice killed to a new step", first_of(lines, second)["time"] - last["time"], "s", LOCAL_GOAL)
    ]


if __name__ == "__main__":
    sys.exit(main())
