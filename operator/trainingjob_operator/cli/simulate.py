"""`trainingjob simulate`: how a job would fare under faults, and what would make it fare better."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.progress import track

from trainingjob_api.base import seconds as parse_duration
from trainingjob_api.running import Snapshots
from trainingjob_operator.cli.console import SafeConsole
from trainingjob_operator.cli.documents import Document, read_one_job
from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.cli.tables import align
from trainingjob_operator.cli.validate import require_valid
from trainingjob_operator.cli.weather import DAY, Weather, draw_faults
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.snapshots import copy_seconds
from trainingjob_operator.core.running.goodput import Bucket
from trainingjob_operator.core.simulating.pace import Pace, scale_steps
from trainingjob_operator.core.simulating.simulate import Outcome, simulate
from trainingjob_operator.core.units import percent, plural, precise, span

EXPECTED_FAULTS = 60
LONGEST_DAYS = 3650
ENDLESS = 100_000_000
"""Steps of a simulated job: it is watched for a time and never done."""
INTERVALS = (1, 3)
"""Steps between two checkpoints that are tried: these times a power of ten."""
MOST_INTERVAL = 5000
ENOUGH = 0.0005
"""Share of all time by which a change must be better to be worth the words."""


@dataclass(frozen=True)
class Options:
    """What the command line says. Spans are as written there: `30d`, `1h30m`."""

    mtbf: str
    repair: str
    time: str | None
    """None: until so many faults that chance evens out."""
    step: float | None
    """Seconds of a step at the largest size. None: as by the roofline."""
    pace: Pace
    """Of all but the steps."""
    slices: int | None
    """The most slices that the job has. None: as the file says."""
    spares: int
    seed: int


@dataclass(frozen=True)
class Variant:
    """One way to run the job. `change` is what differs from the file; empty: nothing."""

    change: str
    plan: Plan
    spares: int
    kind: str = ""
    """What it is a change of."""


type Lived = Sequence[tuple[Variant, Outcome]]


def simulate_file(file: str, hardware: Hardware, options: Options, *, as_json: bool) -> None:
    """Simulate a file's job, and variants of it under the same faults, and print how each fared.

    Raises:
        CommandError: the file has no single TrainingJob, it has problems, nobody knows how long a step takes, or an
            option is no span of time.
    """
    job = _resize(read_one_job(file), options.slices)
    plan, _ = require_valid(job, hardware)
    plan = _without_end(plan)
    largest = plan.allowed[-1]
    steps = scale_steps(plan, options.step)
    if steps is None:
        raise UsageError(f"how long a step takes on {plan.shape.accelerator} is not known: give --step-seconds.")
    pace = replace(options.pace, steps=steps, copy=copy_seconds(plan.spec, plan.shape, plan.layout(largest)))
    weather = _read_weather(options, plan.spec.slices.most)
    faults = draw_faults(weather, plan.spec.slices.most)
    variants = list(_list_variants(plan, hardware, pace, options.spares))
    told = track(variants, description="simulating", console=SafeConsole(stderr=True), transient=True)
    lived = [(one, simulate(one.plan, pace, faults, weather.length, one.spares)) for one in told]
    if as_json:
        found = [_as_object(one, outcome) for one, outcome in lived]
        echo(json.dumps({"faults": len(faults), "seconds": weather.length, "variants": found}, indent=2))
        return
    echo(
        f"{job.name} · {plural(largest, 'slice')}, each struck every {span(weather.mtbf)}, lost for about "
        f"{span(weather.repair)} · {span(weather.length)} simulated · {plural(len(faults), 'fault')} · "
        f"a step takes {precise(steps[largest])}"
    )
    for line in ("", *_table(lived), "", *_advise(lived)):
        echo(line)


def _resize(job: Document, num_slices: int | None) -> Document:
    """Return the job with another number of slices at most; nothing else is changed to make that valid."""
    slices = job.spec.get("slices") if isinstance(job.spec, dict) else None
    if num_slices is None or not isinstance(slices, dict):
        return job
    resized: dict[str, Any] = {**slices, ("count" if "count" in slices else "max"): num_slices}
    return replace(job, content={**job.content, "spec": {**job.spec, "slices": resized}})


def _read_weather(options: Options, num_slices: int) -> Weather:
    mtbf, repair = parse_span(options.mtbf, "--mtbf"), parse_span(options.repair, "--repair")
    by_chance = min(EXPECTED_FAULTS * (mtbf + repair) / num_slices, LONGEST_DAYS * DAY)
    length = parse_span(options.time, "--time") if options.time else by_chance
    return Weather(mtbf, repair, length, options.seed)


def parse_span(text: str, option: str) -> float:
    """Return the seconds of `30d`, `12h`, `1d6h` or `90s`.

    Raises:
        UsageError: the text is no span of time above zero.
    """
    match = re.fullmatch(r"(?:(\d+)d)?(.*)", text)
    try:
        days, rest = (int(match[1] or 0), match[2]) if match else (0, text)
        found = days * DAY + (parse_duration(rest) if rest or not days else 0)
    except ValueError:
        found = 0
    if found <= 0:
        raise UsageError(f"{option}: '{text}' is no span of time such as `30d`, `12h` or `1h30m`.")
    return float(found)


def _without_end(plan: Plan) -> Plan:
    training = plan.spec.training.model_copy(update={"steps": ENDLESS})
    spec = plan.spec.model_copy(update={"training": training, "active_deadline_seconds": None, "suspend": False})
    return replace(plan, spec=spec)


def _list_variants(plan: Plan, hardware: Hardware, pace: Pace, spares: int) -> Iterator[Variant]:
    """Yield the job as it is written, then with one thing changed at a time.

    No two are changed together: what was best of each kind, taken together, made within 0.0002 of the steps of the best
    of all 144 combinations, for the example of four slices struck each second day and each week.
    """
    spec, largest = plan.spec, plan.allowed[-1]
    written = spec.checkpoint.save.every_steps
    yield Variant("", plan, spares)
    intervals = (base * 10**power for power in range(4) for base in INTERVALS)
    for every in intervals:
        # A save must be done before the next one begins.
        if pace.save <= every * pace.steps[largest] and every <= MOST_INTERVAL and every != written:
            save = spec.checkpoint.save.model_copy(update={"every_steps": every})
            checkpoint = spec.checkpoint.model_copy(update={"save": save})
            changed = replace(plan, spec=spec.model_copy(update={"checkpoint": checkpoint}))
            yield Variant(f"checkpoint.save.everySteps: {every}", changed, spares, "save")
    for fewest in plan.allowed:
        if fewest != spec.slices.fewest and spec.slices.count is None:
            slices = spec.slices.model_copy(update={"min": fewest})
            changed = plan_job(spec.model_copy(update={"slices": slices}), hardware)
            yield Variant(f"slices.min: {fewest}", changed, spares, "min")
    if spec.checkpoint.snapshots is None:
        checkpoint = spec.checkpoint.model_copy(update={"snapshots": Snapshots()})
        changed = plan_job(spec.model_copy(update={"checkpoint": checkpoint}), hardware)
        yield Variant("checkpoint.snapshots: {}", changed, spares, "snapshots")
    for more in (1, 2):
        yield Variant(f"{plural(spares + more, 'spare slice')}", plan, spares + more, "spares")


def _table(lived: Lived) -> list[str]:
    headings = ("", "goodput", "throughput", "lost steps", "down", "worlds")
    rows = [(one.change or "as written", *_cells(outcome)) for one, outcome in lived]
    return [
        *align([headings, *rows], right=(1, 2, 3, 4, 5)),
        "goodput: share of the time that trained for good",
        "throughput: steps made, by those of the largest size without faults and saves",
    ]


def _cells(outcome: Outcome) -> tuple[str, ...]:
    spent = outcome.status.goodput.seconds
    lost = spent.get(Bucket.LOST_STEPS, 0.0) / outcome.seconds
    training = (Bucket.TRAINING, Bucket.LOST_STEPS)
    down = sum(seconds for bucket, seconds in spent.items() if bucket not in training) / outcome.seconds
    return (
        percent(outcome.status.goodput.ratio),
        percent(outcome.throughput),
        percent(lost),
        percent(down),
        str(outcome.worlds),
    )


def _advise(lived: Lived) -> list[str]:
    """Return of each kind of change the one that helps most by itself, the best first; before all, a job that fails."""
    written = lived[0][1].throughput
    best: dict[str, tuple[float, str]] = {}
    for one, outcome in lived[1:]:
        if outcome.throughput > max(written + ENOUGH, best.get(one.kind, (0.0, ""))[0]):
            best[one.kind] = (outcome.throughput, one.change)
    words = [
        f"{change} alone: {percent(share)} of all steps instead of {percent(written)}"
        for share, change in sorted(best.values(), reverse=True)
    ]
    words = words or ["Nothing of this is clearly better than what is written."]
    return [*_describe_failure(lived[0][1]), *words]


def _describe_failure(outcome: Outcome) -> list[str]:
    """Return why and when a job was given up; nothing where it lives."""
    verdict = next((one for one in outcome.status.conditions if (one.type, one.status) == ("Failed", "True")), None)
    return [f"As written the job fails after {span(outcome.seconds)}: {verdict.message}"] if verdict else []


def _as_object(one: Variant, outcome: Outcome) -> dict[str, object]:
    return {
        "change": one.change,
        "spares": one.spares,
        "failed": outcome.status.phase == "Failed",
        "goodput": outcome.status.goodput.ratio,
        "throughput": round(outcome.throughput, 4),
        "step": outcome.step,
        "worlds": outcome.worlds,
        "restarts": outcome.status.restarts.total,
        "seconds": outcome.status.goodput.seconds,
    }
