"""The planner on random jobs: time from the raw spec to its plan or to all its problems.

Each job is an example with random slice shape, counts, mesh and model, drawn so that about half of the jobs are valid.
The webhook needs this time for each create, and the operator for each edit.
"""

import gc
import statistics
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import yaml
from rich.console import Console
from rich.progress import track

from e2e.benchmarks.figures import Figure, publish
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.validation.validate import validate_job

EXAMPLES = Path(__file__).parents[2] / "crds/examples"
NUM_SPECS, NUM_LARGE, NUM_AUTO = 10_000, 1_000, 500
GOAL_MS, LARGE_GOAL_MS = 10.0, 20.0
AUTO_GOAL_MS = 100.0  # the webhook's budget
LARGE_CHIPS = 16_384
AXES = ("data", "stage", "fsdp", "expert", "context", "tensor")
SEED = 20

type Spec = dict[str, Any]


def random_specs(random: Random, count: int) -> Iterator[Spec]:
    """Yield jobs of any size in the hardware table."""
    specs = (yaml.safe_load(path.read_text())["spec"] for path in sorted(EXAMPLES.glob("*.yaml")))
    examples = [spec for spec in specs if "program" not in spec]
    for _ in range(count):
        spec = deepcopy(random.choice(examples))
        accelerator = random.choice(BUILTIN.accelerators)
        row = BUILTIN.accelerators_by_name.get(
            accelerator
        )  # None: `cpu`, which allows any numbers of hosts and devices
        topology = random.choice([shape.topology for shape in row.slices] if row else ["2x2", "2x4", "4x2"])
        change(random, spec, accelerator, topology, random.choice((1, 2, 4, 8, 16, 64, 256)))
        yield spec


def large_specs(random: Random, count: int) -> Iterator[Spec]:
    """Yield jobs with 16,384 chips at their largest size."""
    example = yaml.safe_load((EXAMPLES / "tpu-v5p-4-slices.yaml").read_text())["spec"]
    for _ in range(count):
        spec = deepcopy(example)
        topology, chips = random.choice((("4x4x4", 64), ("8x8x8", 512), ("8x8x16", 1024), ("16x16x16", 4096)))
        change(random, spec, "tpu-v5p", topology, LARGE_CHIPS // chips)
        yield spec


def auto_specs(random: Random, count: int) -> Iterator[Spec]:
    """Yield jobs whose mesh the planner chooses; all differ, so that no result is cached."""
    for number, spec in enumerate(random_specs(random, count)):
        spec["parallelism"] = {"strategy": "auto"}
        spec["training"]["globalBatchSize"] = 4096 + 8 * number
        yield spec


def change(random: Random, spec: Spec, accelerator: str, topology: str, most: int) -> None:
    """Replace a job's slice shape, counts, mesh and model."""
    spec["slices"] = {"accelerator": accelerator, "topology": topology}
    spec["slices"] |= {"min": random.randint(1, most), "max": most} if random.random() < 0.6 else {"count": most}
    spec["parallelism"] = {side: random_degrees(random, rest) for side, rest in (("ici", "fsdp"), ("dcn", "data"))}
    spec["model"] |= {
        "embedDim": random.choice((512, 1024, 4096, 6144)),
        "mlpDim": random.choice((2048, 8192, 14336)),
        "numLayers": random.choice((8, 12, 32, 61)),
        "numHeads": random.choice((8, 32, 48)),
        "numKvHeads": random.choice((4, 8)),
    }
    spec["training"] |= {
        "globalBatchSize": random.choice((64, 256, 1000, 4096)),
        "sequenceLength": random.choice((1024, 4096, 8192)),
    }
    spec["memory"] = {"remat": random.choice(("none", "full"))}


def random_degrees(random: Random, rest: str) -> dict[str, int]:
    """Return the degrees of one network: usually one axis takes the remaining devices, and others are split."""
    degrees = {axis: random.choice((1, 1, 1, 1, 2, 4, 3)) for axis in random.sample(AXES, 2)}
    return degrees | ({rest: -1} if random.random() < 0.9 else {})


def time_checks(specs: Iterator[Spec], count: int, what: str) -> tuple[list[float], int]:
    """Return the milliseconds of each check in ascending order, and the number of jobs with a plan."""
    times, planned = [], 0
    for spec in track(specs, description=what, total=count, console=Console(stderr=True)):
        begin = time.perf_counter()
        checked = validate_job("random", spec)
        times.append((time.perf_counter() - begin) * 1000)
        if (checked.plan is None) != bool(checked.problems):
            sys.exit(f"neither a plan nor problems, or both:\n{yaml.safe_dump(spec)}")
        planned += checked.plan is not None
    return sorted(times), planned


def main() -> None:
    """Measure and publish."""
    random = Random(SEED)  # noqa: S311  # no secret
    figures = []
    gc.freeze()  # as the operator does
    for what, draw, count, goal in (
        ("any size", random_specs, NUM_SPECS, GOAL_MS),
        ("16,384 chips", large_specs, NUM_LARGE, LARGE_GOAL_MS),
        ("strategy auto", auto_specs, NUM_AUTO, AUTO_GOAL_MS),
    ):
        times, planned = time_checks(draw(random, count), count, what)
        figures += [
            Figure(f"{what}: median", statistics.median(times), "ms", goal),
            Figure(f"{what}: p99", times[len(times) * 99 // 100], "ms", goal),
            Figure(f"{what}: slowest", times[-1], "ms", goal),
            Figure(f"{what}: jobs with a plan", planned, "jobs", count),
        ]
    publish("plan", figures, Console())


if __name__ == "__main__":
    main()
