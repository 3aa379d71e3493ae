"""A status as people read it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.cli.report import describe_job

NOW = datetime(2026, 11, 21, 12, 10, 0, tzinfo=UTC)
START = "2026-11-21T12:00:00Z"
WEB = (
    "  web                 3 files  2 documents  5 M characters  1.23 M tokens  603 rows  1.50 epochs  "
    "skipped: 2 hidden (.git), 1 other name (README)"
)


def make_status(**fields: Any) -> TrainingJobStatus:
    return TrainingJobStatus.model_validate(fields)


def condition(kind: str, message: str, status: str = "True") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": "R", "message": message, "lastTransitionTime": START}


def attempt(generation: int, slices: int, **fields: Any) -> dict[str, Any]:
    return {"generation": generation, "slices": slices, "started": START, **fields}


def test_running_job_is_described_completely() -> None:
    status = make_status(
        phase="Degraded",
        conditions=[condition("Degraded", "slice 2: node gke-7f31 of host 0 is not ready")],
        progress={
            "step": 48210,
            "of": 200000,
            "percent": 24.1,
            "loss": 2.11312,
            "tokensPerSecond": 2_020_000,
            "mfu": 0.413,
            "etaSeconds": 457_200,
            "evaluations": {"books": 1.9, "held-out": 2.2, "web": 2.4},
            "scores": {"books": {"accuracy": 0.5}, "held-out": {"accuracy": 0.4212, "bitsPerByte": 0.8412}},
            "snapshot": 48200,
        },
        data={
            "tokens": 1_234_567,
            "rows": 603,
            "epochs": 1.504,
            "sources": [
                {
                    "name": "web",
                    "files": 3,
                    "documents": 2,
                    "characters": 5_000_000,
                    "tokens": 1_234_567,
                    "rows": 603,
                    "epochs": 1.504,
                    "skipped": [
                        {"reason": "hidden", "count": 2, "example": ".git"},
                        {"reason": "otherName", "count": 1, "example": "README"},
                    ],
                },
                {"name": "books", "evaluation": True, "files": 1, "documents": 1, "characters": 999},
            ],
            "warnings": ["2 documents follow each other without a separator."],
        },
        checkpoint={"step": 48000, "time": "2026-11-21T12:07:00Z"},
        failingSaves={
            "step": 48200,
            "since": "2026-11-21T12:07:30Z",
            "message": "host 0 of slice 1: Stale file handle",
        },
        backup={"step": 47000, "time": "2026-11-21T11:10:00Z"},
        failingCopies={
            "step": 48000,
            "since": "2026-11-21T12:07:00Z",
            "message": "host 1 of slice 1: Broken pipe",
        },
        export={"step": 46000, "time": "2026-11-21T10:10:00Z"},
        failingExports={"step": 48000, "since": "2026-11-21T12:07:00Z", "message": "host 0 of slice 0: Broken pipe"},
        straggler={"slice": 1, "host": 0, "node": "gke-9ab", "ratio": 0.41, "since": START},
        nodes=[
            {"node": "gke-11c9", "faults": 1, "until": START, "why": "NodeLost: not ready", "probation": True},
            {"node": "gke-12aa", "faults": 1, "until": START, "why": "Crash"},
        ],
        probation=[{"node": "gke-13bb", "since": START, "away": True, "why": "node gke-13bb is not ready"}],
        attempts=[
            attempt(
                1,
                4,
                ended=START,
                firstStep=0,
                lastStep=31977,
                cause={"reason": "NodeLost", "message": "node gke-11c9 is not ready"},
            ),
            attempt(2, 3, firstStep=31974, tier="ram", lastStep=48210, recoverySeconds=4.1, lostSteps=3),
        ],
        goodput={"ratio": 0.974, "seconds": {"compiling": 360, "training": 181860, "lostSteps": 120, "queued": 0.01}},
    )

    assert describe_job("llama3-8b", status, NOW) == [
        "llama3-8b  Degraded: slice 2: node gke-7f31 of host 0 is not ready",
        (
            "step 48,210 of 200,000 (24 %)   loss 2.113   books 1.9 (50.0 % correct)   "
            "held-out 2.2 (42.1 % correct, 0.8412 bits per byte)   web 2.4   2.02 M tokens/s   MFU 41.3 %   "
            "done in about 5 d 7 h"
        ),
        "text 1.23 M tokens   603 rows   1.50 epochs",
        WEB,
        "  books (evaluation)  1 file   1 document   999 characters",
        "  warning: 2 documents follow each other without a separator.",
        (
            "checkpoint 48,000 durable, 3 m 0 s ago · backup 47,000, 1 h 0 m ago · export 46,000, 2 h 0 m ago · "
            "snapshot 48,200"
        ),
        "saves have failed for 2 m 30 s, the last one of step 48,200: host 0 of slice 1: Stale file handle",
        "copies to the backup have failed for 3 m 0 s, the last one of step 48,000: host 1 of slice 1: Broken pipe",
        "exports have failed for 3 m 0 s, the last one of step 48,000: host 0 of slice 0: Broken pipe",
        "host 0 of slice 1 (node gke-9ab) is a straggler: all other hosts wait for it during 41.0 % of each step",
        "node gke-11c9 is on probation: NodeLost: not ready",
        "node gke-13bb is away, then on probation: node gke-13bb is not ready",
        "attempts",
        "  #1  4 slices  step       0  -> 31,977  node gke-11c9 is not ready  back in 4.1 s from memory, 3 steps lost",
        "  #2  3 slices  step  31,974  -> now",
        "goodput 97.4 %   training 50 h 31 m · compiling 6 m 0 s · lost steps 2 m 0 s",
    ]


HEADLINES = {
    "never looked at": ({}, "job  New: the operator has not reconciled the job yet"),
    "invalid": (
        {"phase": "Invalid", "conditions": [condition("Valid", "1 problem:\nspec.model: bad", "False")]},
        "job  Invalid: 1 problem:\nspec.model: bad",
    ),
    "waiting": (
        {"phase": "Queued", "conditions": [condition("Queued", "no nodes"), condition("Running", "", "False")]},
        "job  Queued: no nodes",
    ),
    "starting": (
        {"phase": "Starting", "conditions": [condition("Running", "hosts are joining the world", "False")]},
        "job  Starting: hosts are joining the world",
    ),
    "succeeded": ({"phase": "Succeeded"}, "job  Succeeded"),
    "invalid by now, with a world": (
        {"phase": "Running", "conditions": [condition("Valid", "1 problem:\nspec.model: bad", "False")]},
        (
            "job  Running: the operator starts and recovers no world until the stored spec is valid: 1 problem:\n"
            "spec.model: bad"
        ),
    ),
    "invalid and degraded": (
        {
            "phase": "Degraded",
            "conditions": [condition("Valid", "1 problem", "False"), condition("Degraded", "slice 1: no node")],
        },
        (
            "job  Degraded: slice 1: no node; the operator starts and recovers no world until the stored spec is "
            "valid: 1 problem"
        ),
    ),
    "over, and invalid by now": (
        {"phase": "Succeeded", "completionTime": START, "conditions": [condition("Valid", "1 problem", "False")]},
        "job  Succeeded",
    ),
    "a world without JobSet": (
        {
            "phase": "Running",
            "conditions": [{**condition("Queued", "JobSet is not installed"), "reason": "JobSetMissing"}],
        },
        "job  Running: the operator starts and recovers no world: JobSet is not installed",
    ),
    "queued without JobSet": (
        {
            "phase": "Queued",
            "conditions": [{**condition("Queued", "JobSet is not installed"), "reason": "JobSetMissing"}],
        },
        "job  Queued: JobSet is not installed",
    ),
}


@pytest.mark.parametrize(("fields", "want"), HEADLINES.values(), ids=HEADLINES.keys())
def test_headline_contains_the_reason(fields: dict[str, Any], want: str) -> None:
    assert describe_job("job", make_status(**fields), NOW) == [want]


def test_headline_of_a_world_contains_its_size_and_age() -> None:
    world = {"generation": 1, "slices": [0, 1, 2], "coordinator": "h:1", "members": "x", "since": START}
    running = {**condition("Running", "training on 3 slices"), "reason": "Training"}
    status = make_status(phase="Running", world=world, display={"slices": "3/3"}, conditions=[running])

    (line,) = describe_job("job", status, NOW)

    since = datetime(2026, 11, 21, 12, 0, tzinfo=UTC).astimezone()
    assert line == f"job  Running on 3/3 slices since {since:%H:%M:%S}"


def test_start_of_a_world_of_an_earlier_day_has_its_date() -> None:
    world = {"generation": 1, "slices": [0], "coordinator": "h:1", "members": "x", "since": "2026-11-19T12:00:00Z"}

    (line,) = describe_job("job", make_status(phase="Running", world=world, display={"slices": "1/1"}), NOW)

    since = datetime(2026, 11, 19, 12, 0, tzinfo=UTC).astimezone()
    assert line == f"job  Running on 1/1 slices since {since:%Y-%m-%d %H:%M:%S}"


@pytest.mark.parametrize("phase", ["Suspended", "Queued", "Recovering", "Failed", "Succeeded"])
def test_job_that_does_not_train_has_no_speed_and_no_rest(phase: str) -> None:
    progress = {
        "step": 10,
        "of": 100,
        "percent": 10.0,
        "loss": 2.5,
        "mfu": 0.4,
        "tokensPerSecond": 1e6,
        "etaSeconds": 90,
    }

    assert (
        describe_job("job", make_status(phase=phase, progress=progress), NOW)[1] == "step 10 of 100 (10 %)   loss 2.5"
    )


def test_failed_job_shows_cause_and_next_step_of_its_condition_once() -> None:
    message = "the data is empty\nTo train again, correct the cause."
    status = make_status(phase="Failed", conditions=[condition("Failed", message)])

    assert describe_job("job", status, NOW) == [f"job  Failed: {message}"]
