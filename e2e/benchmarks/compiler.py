"""The planner's estimates against real compilers: memory, FLOPs and traffic on TPU topologies and CPU devices.

Needs libtpu but no device; a row takes a minute or more. `--record` writes the compilers' figures to the golden file of
the tests. With `--meshes` the rows are the meshes of the jobs that judge `strategy: auto`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from e2e.benchmarks.compiler_cases import COMPILER_CASES
from e2e.benchmarks.compiler_meshes import list_jobs
from e2e.benchmarks.figures import Figure, publish
from trainingjob_api.compile_report import CompiledStep
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.cli.plan_compile import compile_sizes, require_compiler, sum_compiled
from trainingjob_operator.core.planner.flops import count_visible_flops
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.traffic import predict_traffic, sum_by_axes
from trainingjob_operator.core.planner.workload import describe_workload

CASES_GOLDEN = Path(__file__).parents[2] / "tests/golden/compiler.json"
MESHES_GOLDEN = Path(__file__).parents[2] / "tests/golden/compiler_meshes.json"


def compile_case(name: str, spec: TrainingJobSpec) -> CompiledStep:
    """Return the compiler's figures of a row.

    Raises:
        CommandError: the compiler is not installed, or ended without an answer.
        RuntimeError: the row did not compile.
    """
    plan = plan_job(spec)
    require_compiler(plan)
    (answer,) = compile_sizes("row", plan)
    if answer.step is None:
        raise RuntimeError(f"{name}: {answer.error}")
    return answer.step


def compare(name: str, spec: TrainingJobSpec, step: CompiledStep) -> Iterator[Figure]:
    """Yield each estimate of a row beside the compiler's figure."""
    plan = plan_job(spec)
    (size,) = plan.sizes
    assert size.layout
    assert size.memory
    workload = describe_workload(spec)
    yield Figure(f"{name}: memory", size.memory.total / 1e6, "MB", step.memory / 1e6)
    yield Figure(f"{name}: FLOPs", count_visible_flops(workload, size.layout) / 1e9, "GFLOP", step.flops / 1e9)
    predicted = sum_by_axes(predict_traffic(workload, size.layout, plan.shape.platform))
    for key, found in sum_compiled(step).items():
        if found > 1e6:
            what = f"{name}: {key[0]} along {' '.join(key[1])}"
            yield Figure(what, predicted.get(key, 0) / 1e6, "MB", found / 1e6)


def record_meshes(console: Console, name_parts: list[str]) -> None:
    """Compile the meshes of the jobs that judge the planner's choice, and write each answer at once.

    Meshes are compiled if they are not on record, or if their names contain one of `name_parts`.
    """
    jobs = list_jobs()
    found = json.loads(MESHES_GOLDEN.read_text()) if MESHES_GOLDEN.exists() else {}
    for name, meshes in jobs.items():
        for mesh, spec in meshes.items():
            row = f"{name}, {mesh}"
            if mesh in found.get(name, {}) and not any(part in row for part in name_parts):
                continue
            step = compile_case(row, spec)
            console.print(f"{row}: compiled in {step.seconds:.0f} s")
            found.setdefault(name, {})[mesh] = step.model_dump(mode="json", by_alias=True)
            kept = {
                name: {mesh: found[name][mesh] for mesh in meshes if mesh in found[name]}
                for name, meshes in jobs.items()
                if name in found
            }
            MESHES_GOLDEN.write_text(json.dumps(kept, indent=1) + "\n")


def main(*arguments: str) -> None:
    """Compile the rows whose names contain one of the arguments, or all rows; `--record` writes the answers."""
    name_parts = [argument for argument in arguments if not argument.startswith("--")]
    steps = json.loads(CASES_GOLDEN.read_text()) if CASES_GOLDEN.exists() else {}
    console = Console()
    if "--meshes" in arguments:
        record_meshes(console, name_parts)
        return
    figures: list[Figure] = []
    for name, spec in COMPILER_CASES.items():
        if not name_parts or any(part in name for part in name_parts):
            step = compile_case(name, spec)
            console.print(f"{name}: compiled in {step.seconds:.0f} s")
            figures += compare(name, spec, step)
            steps[name] = step.model_dump(mode="json", by_alias=True)
            if "--record" in arguments:
                kept = {name: steps[name] for name in COMPILER_CASES if name in steps}
                CASES_GOLDEN.write_text(json.dumps(kept, indent=1) + "\n")
    publish("compiler", figures, console)


if __name__ == "__main__":
    main(*sys.argv[1:])
