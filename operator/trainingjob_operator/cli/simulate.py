"""`trainingjob simulate`: the effect of faults on a job, and the changes that would reduce it."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.progress import track

from trainingjob_api.base import seconds as parse_duration
from trainingjob_api.spec.checkpoint import Snapshots
from trainingjob_operator.cli.console import SafeConsole
from trainingjob_operator.cli.documents import Document, read_single_job
from trainingjob_operator.cli.errors import CommandError, UsageError
from trainingjob_operator.cli.fault_model import DAY, FaultModel, draw_faults, mean_repair
from trainingjob_operator.cli.printing import align, echo
from trainingjob_operator.cli.validate_command import require_trainer_job
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.goodput import Bucket
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.snapshots import copy_seconds
from trainingjob_operator.core.report.conditions import failure_cause
from trainingjob_operator.core.simulate.durations import Durations, step_seconds_by_size
from trainingjob_operator.core.simulate.simulation_run import SimulationResult, simulate
from trainingjob_operator.core.units import format_duration, format_percent, format_precise_duration, pluralize

EXPECTED_FAULTS = 60
"""Number of faults over which chance averages out. A job with fewer faults is run several times."""
MAX_RUNS = 20
MAX_DAYS = 3650
MAX_SPAN_DAYS = 36_500
ABANDON_FACTOR = 10
"""A run is abandoned after this multiple of the sum of its fault-free time and one mean repair time."""
INTERVAL_BASES = (1, 3)
"""Checkpoint intervals to try, in steps: these values times each power of ten."""
MAX_INTERVAL = 5000
MIN_GAIN = 0.001
"""Smallest gain in throughput, as a share of all steps, that is reported."""
AMPLE_RESTARTS = 1000
"""Value of `maxRestarts` for the variant that never fails for lack of restarts."""
MONTH = 30 * DAY
SEED_STRIDE = 1_000_003
"""Distance between the seeds of two runs, so that another `--seed` repeats none of the runs."""


@dataclass(frozen=True)
class Options:
    """The options of the command line. Time spans are text: `30d`, `1h30m`."""

    mtbf: str
    repair: str
    time: str | None
    """Longest simulated time of one run. None: until the job has ended."""
    step: float | None
    """Seconds per step at the largest size. None: the expected ones of the plan."""
    durations: Durations
    """All durations except those of steps."""
    slices: int | None
    """Maximum number of slices. None: as in the file."""
    spares: int
    seed: int


@dataclass(frozen=True)
class Variant:
    """One way to run the job. `change` is the difference from the file; empty: no difference."""

    change: str
    plan: Plan
    spares: int
    kind: str = ""
    """Category of the change."""


@dataclass(frozen=True)
class Runs:
    """The outcomes of all runs of one variant."""

    outcomes: tuple[SimulationResult, ...]

    @property
    def seconds(self) -> float:
        """Return the total time of all runs."""
        return sum(outcome.seconds for outcome in self.outcomes)

    @property
    def throughput(self) -> float:
        """Return the steps trained, as a share of those that the largest size trains in that time without a fault."""
        observed = sum(outcome.observed_seconds for outcome in self.outcomes)
        return sum(outcome.ideal_seconds for outcome in self.outcomes) / observed if observed else 0.0

    @property
    def seconds_by_bucket(self) -> dict[str, float]:
        """Return the seconds by goodput bucket."""
        buckets: Counter[str] = Counter()
        for outcome in self.outcomes:
            buckets.update(outcome.status.goodput.seconds)
        return dict(buckets)

    @property
    def goodput(self) -> float:
        """Return the share of the time spent on training steps that were kept."""
        spent = self.seconds_by_bucket
        return spent.get(Bucket.TRAINING, 0.0) / total if (total := sum(spent.values())) else 0.0

    @property
    def restarts(self) -> int:
        """Return the number of worlds formed because another world had ended."""
        return sum(outcome.status.restarts.total for outcome in self.outcomes)

    def list_ended(self, phase: str) -> list[SimulationResult]:
        """Return the runs that ended in a phase."""
        return [outcome for outcome in self.outcomes if outcome.status.phase == phase]


type Results = Sequence[tuple[Variant, Runs]]


def simulate_file(file: str, catalog: Catalog, options: Options, *, as_json: bool) -> None:
    """Simulate a file's job and its variants under the same faults, and print the results.

    Raises:
        CommandError: the file does not hold exactly one TrainingJob, it has problems or no number of steps, the
            duration of a step is unknown, or an option is not a time span.
    """
    job = _resize(read_single_job(file), options.slices)
    plan, _ = require_trainer_job(job, "simulate", catalog)
    num_steps = plan.spec.training.steps
    if num_steps is None:
        raise CommandError(
            f"{job.name}: `trainingjob simulate` needs the number of steps. Only the hosts can count those of "
            f"`spec.training.epochs` ({plan.spec.training.epochs:g}): write an estimate as `spec.training.steps`."
        )
    prepared = plan.spec.data.model_copy(update={"prepare": None})  # only the time of training is simulated
    plan = replace(plan, spec=plan.spec.model_copy(update={"suspend": False, "data": prepared}))
    largest = plan.allowed_sizes[-1]
    steps = step_seconds_by_size(plan, options.step)
    if steps is None:
        raise UsageError(f"the duration of a step on {plan.shape.accelerator} is unknown: set --step-seconds.")
    durations = replace(
        options.durations, step_seconds=steps, snapshot_copy=copy_seconds(plan.spec, plan.shape, plan.layout(largest))
    )
    ideal = num_steps * steps[largest]
    fault_model = _build_fault_model(options, ideal)
    fault_traces = [
        draw_faults(model, plan.spec.slices.max_slices)
        for model in _repeat(fault_model, ideal, plan.spec.slices.max_slices)
    ]
    variants = list(_list_variants(plan, catalog, durations, options.spares))
    tracked_variants = track(variants, description="simulating", console=SafeConsole(stderr=True), transient=True)
    results = [
        (
            variant,
            Runs(
                tuple(
                    simulate(variant.plan, durations, faults, fault_model.simulated_seconds, variant.spares)
                    for faults in fault_traces
                )
            ),
        )
        for variant in tracked_variants
    ]
    as_written = results[0][1].outcomes
    num_faults = sum(
        fault.at < outcome.seconds for outcome, faults in zip(as_written, fault_traces, strict=True) for fault in faults
    )
    if as_json:
        head = {
            "faults": num_faults,
            "seconds": fault_model.simulated_seconds,
            "runs": len(fault_traces),
            "idealSeconds": round(ideal, 1),
        }
        echo(json.dumps({**head, "variants": [_as_object(*result) for result in results]}, indent=2))
        return
    estimate = "" if options.step else ", as the plan expects"
    echo(
        f"{job.name} · {pluralize(largest, 'slice')} · mean time between faults of a slice "
        f"{format_duration(fault_model.mtbf)} · repair time {format_duration(fault_model.repair)} median, "
        f"{format_duration(mean_repair(fault_model))} mean · step time "
        f"{format_precise_duration(steps[largest])}{estimate} · all steps without faults {format_duration(ideal)} "
        f"· {pluralize(len(fault_traces), 'run')} with {pluralize(num_faults, 'fault')}"
    )
    for line in ("", *_table(results), "", *_recommend(results)):
        echo(line)


def _resize(job: Document, num_slices: int | None) -> Document:
    """Return the job with another maximum number of slices. Nothing else is adjusted to keep it valid."""
    slices = job.spec.get("slices") if isinstance(job.spec, dict) else None
    if num_slices is None or not isinstance(slices, dict):
        return job
    resized: dict[str, Any] = {**slices, ("count" if "count" in slices else "max"): num_slices}
    return replace(job, content={**job.content, "spec": {**job.spec, "slices": resized}})


def _build_fault_model(options: Options, ideal: float) -> FaultModel:
    """Return the fault model of the options. Its length is the time limit of a run.

    By default a run ends with the job, or when it exceeds `ABANDON_FACTOR` times its ideal time, or `MAX_DAYS`.
    """
    mtbf, repair = parse_span(options.mtbf, "--mtbf"), parse_span(options.repair, "--repair")
    fault_model = FaultModel(mtbf, repair, 0.0, options.seed)
    time_limit = min(ABANDON_FACTOR * (ideal + mean_repair(fault_model)), MAX_DAYS * DAY)
    return replace(fault_model, simulated_seconds=parse_span(options.time, "--time") if options.time else time_limit)


def _repeat(fault_model: FaultModel, ideal: float, num_slices: int) -> list[FaultModel]:
    """Return one copy of the fault model per run, each with a different seed."""
    expected = num_slices * min(ideal, fault_model.simulated_seconds) / (fault_model.mtbf + mean_repair(fault_model))
    num_runs = min(math.ceil(EXPECTED_FAULTS / expected), MAX_RUNS) if expected else MAX_RUNS
    return [replace(fault_model, seed=fault_model.seed + number * SEED_STRIDE) for number in range(num_runs)]


def parse_span(text: str, option: str) -> float:
    """Return the seconds of `30d`, `12h`, `1d6h` or `90s`.

    Raises:
        UsageError: the text is not a positive time span.
    """
    match = re.fullmatch(r"(?:(\d+)d)?(.*)", text)
    try:
        days, rest = (int(match[1] or 0), match[2]) if match else (0, text)
        seconds = days * DAY + (parse_duration(rest) if rest or not days else 0)
    except ValueError:
        seconds = 0
    if seconds <= 0:
        raise UsageError(f"{option}: '{text}' must be a time span such as `30d`, `12h` or `1h30m`.")
    if seconds > MAX_SPAN_DAYS * DAY:
        raise UsageError(f"{option}: '{text}' must be at most {MAX_SPAN_DAYS}d.")
    return float(seconds)


def _list_variants(plan: Plan, catalog: Catalog, durations: Durations, spares: int) -> Iterator[Variant]:
    """Yield the job as written, then variants with one change each.

    Changes are not combined. For the example of four slices, with faults every second day and every week, the best
    change of each kind together came within 0.0002 of the steps of the best of all 144 combinations.
    """
    spec, largest = plan.spec, plan.allowed_sizes[-1]
    written_interval = spec.checkpoint.save.every_steps
    yield Variant("", plan, spares)
    intervals = (base * 10**power for power in range(4) for base in INTERVAL_BASES)
    for every in intervals:
        # A save must end before the next one begins.
        max_interval = min(MAX_INTERVAL, spec.training.step_limit)
        if (
            durations.save <= every * durations.step_seconds[largest]
            and every <= max_interval
            and every != written_interval
        ):
            save = spec.checkpoint.save.model_copy(update={"every_steps": every})
            checkpoint = spec.checkpoint.model_copy(update={"save": save})
            changed = replace(plan, spec=spec.model_copy(update={"checkpoint": checkpoint}))
            yield Variant(f"checkpoint.save.everySteps: {every}", changed, spares, "save")
    for min_slices in plan.allowed_sizes:
        if min_slices != spec.slices.min_slices and spec.slices.count is None:
            slices = spec.slices.model_copy(update={"min": min_slices})
            changed = plan_job(spec.model_copy(update={"slices": slices}), catalog.hardware)
            yield Variant(f"slices.min: {min_slices}", changed, spares, "min")
    if spec.checkpoint.snapshots is None:
        checkpoint = spec.checkpoint.model_copy(update={"snapshots": Snapshots()})
        changed = plan_job(spec.model_copy(update={"checkpoint": checkpoint}), catalog.hardware)
        yield Variant("checkpoint.snapshots: {}", changed, spares, "snapshots")
    if spec.elastic.max_restarts < AMPLE_RESTARTS:
        elastic = spec.elastic.model_copy(update={"max_restarts": AMPLE_RESTARTS})
        changed = replace(plan, spec=spec.model_copy(update={"elastic": elastic}))
        yield Variant(f"elastic.maxRestarts: {AMPLE_RESTARTS}", changed, spares, "restarts")
    for num_added in (1, 2):
        yield Variant(f"{pluralize(spares + num_added, 'spare slice')}", plan, spares + num_added, "spares")


def _table(results: Results) -> list[str]:
    headings = ("", "done in", "failed", "goodput", "throughput", "lost steps", "down", "restarts in 30 d")
    rows = [(variant.change or "as written", *_cells(runs)) for variant, runs in results]
    return [
        *align([headings, *rows], right=range(1, len(headings))),
        "done in: mean duration of the runs that trained all steps; failed: failed runs of all runs",
        "goodput: share of the time that trained steps which were not lost",
        "throughput: completed steps, relative to the largest size without faults and saves",
    ]


def _cells(runs: Runs) -> tuple[str, ...]:
    spent, done = runs.seconds_by_bucket, runs.list_ended("Succeeded")
    seconds = runs.seconds or 1.0
    training = (Bucket.TRAINING, Bucket.LOST_STEPS)
    down = sum(seconds for bucket, seconds in spent.items() if bucket not in training)
    return (
        format_duration(sum(outcome.seconds for outcome in done) / len(done)) if done else "-",
        f"{len(runs.list_ended('Failed'))} of {len(runs.outcomes)}",
        format_percent(runs.goodput),
        format_percent(runs.throughput),
        format_percent(spent.get(Bucket.LOST_STEPS, 0.0) / seconds),
        format_percent(down / seconds),
        f"{runs.restarts * MONTH / seconds:.1f}",
    )


def _recommend(results: Results) -> list[str]:
    """Return the best change of each kind, most effective first, after the failures of the job as written."""
    written_throughput = results[0][1].throughput
    best: dict[str, tuple[float, str]] = {}
    for variant, runs in results[1:]:
        if variant.kind == "restarts":
            continue  # restarts are judged by failures: see `_recommend_restarts`
        # Prefer the smaller change if a larger one gains nothing.
        best_share, _ = best.get(variant.kind, (written_throughput, ""))
        if runs.throughput >= best_share + MIN_GAIN and format_percent(runs.throughput) != format_percent(best_share):
            best[variant.kind] = (runs.throughput, variant.change)
    lines = [
        f"{change} alone: {format_percent(share)} of all steps instead of {format_percent(written_throughput)}"
        for share, change in sorted(best.values(), reverse=True)
    ]
    lines = [*_recommend_restarts(results), *lines] or ["No change is clearly better than the spec as written."]
    return [*_describe_failures(results[0][1]), *lines]


def _recommend_restarts(results: Results) -> list[str]:
    """Return the number of failed runs that more restarts avoid.

    Throughput does not show this: a run that fails early wastes little time but does not finish the job.
    """
    before = len(results[0][1].list_ended("Failed"))
    failures = [(variant, len(runs.outcomes), len(runs.list_ended("Failed"))) for variant, runs in results]
    return [
        f"{variant.change} alone: {num_failed} of {num_runs} runs fail instead of {before}"
        for variant, num_runs, num_failed in failures
        if variant.kind == "restarts" and num_failed < before
    ]


def _describe_failures(runs: Runs) -> list[str]:
    """Return when and why the job as written fails; empty if it does not."""
    failed = runs.list_ended("Failed")
    if not failed:
        return []
    condition = next(
        condition
        for condition in failed[0].status.conditions
        if (condition.type, condition.status) == ("Failed", "True")
    )
    mean_time = format_duration(sum(outcome.seconds for outcome in failed) / len(failed))
    frequency = f" in {len(failed)} of {pluralize(len(runs.outcomes), 'run')}" if len(runs.outcomes) > 1 else ""
    average = " on average" if len(failed) > 1 else ""
    return [f"As written the job fails{frequency} after {mean_time}{average}: {failure_cause(condition)}"]


def _as_object(variant: Variant, runs: Runs) -> dict[str, object]:
    return {
        "change": variant.change,
        "spares": variant.spares,
        "failed": bool(runs.list_ended("Failed")),
        "runsFailed": len(runs.list_ended("Failed")),
        "runsSucceeded": len(runs.list_ended("Succeeded")),
        "goodput": round(runs.goodput, 4),
        "throughput": round(runs.throughput, 4),
        "step": min(outcome.step for outcome in runs.outcomes),
        "worlds": sum(outcome.num_worlds for outcome in runs.outcomes),
        "restarts": runs.restarts,
        "restartsIn30Days": round(runs.restarts * MONTH / runs.seconds, 2) if runs.seconds else 0.0,
        "simulatedSeconds": round(runs.seconds, 1),
        "seconds": {bucket: round(seconds, 3) for bucket, seconds in runs.seconds_by_bucket.items()},
    }
