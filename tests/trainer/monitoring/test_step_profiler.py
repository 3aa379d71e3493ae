"""Traces of steps: which steps of which hosts they have, and that a trace that fails costs no step."""

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.support.trainer.tiny import make_config, make_spec, make_world
from trainingjob_agent.trainer_protocol import StartWorld, TraceOrder
from trainingjob_api.inspection import TRACE_WRITTEN
from trainingjob_trainer.monitoring import step_profiler
from trainingjob_trainer.monitoring.control_signals import ControlSignals
from trainingjob_trainer.monitoring.step_profiler import RUNS, StepProfiler
from trainingjob_trainer.store.opening import open_store

SQUARE = jax.jit(lambda x: x @ x)


def profiler_of(root: Path, process: int = 0, signals: ControlSignals | None = None, **profiling: Any) -> StepProfiler:
    spec = make_spec(root, root, **({"profiling": profiling} if profiling else {}))
    start = StartWorld(config=make_config(spec), world=make_world(1, 2), process=process)
    return StepProfiler(start, open_store(str(root)), signals or ControlSignals())


def train(profiler: StepProfiler, *steps: int) -> None:
    value = jnp.ones((8, 8))
    with profiler:
        for step in steps:
            profiler.begin_step(step, value)
            with jax.profiler.StepTraceAnnotation("train", step_num=step):
                value = SQUARE(value)
            profiler.end_step(step, value)


def list_traces(root: Path) -> list[str]:
    return sorted(path.relative_to(root / RUNS).as_posix() for path in (root / RUNS).rglob("*") if path.is_file())


def steps_in(root: Path, run: str) -> list[int]:
    """Return the steps whose dispatch the trace of one host contains."""
    (path,) = (root / RUNS / run).glob("*.trace.json.gz")
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    return sorted(int(event["args"]["step_num"]) for event in events if event.get("name") == "train")


def test_a_window_is_traced_in_the_layout_of_xprof(tmp_path: Path) -> None:
    train(profiler_of(tmp_path, startStep=3, numSteps=2), *range(1, 8))

    run = "step-000000003.g1"
    assert list_traces(tmp_path) == [f"{run}/slice-0-host-0.trace.json.gz", f"{run}/slice-0-host-0.xplane.pb"]
    assert steps_in(tmp_path, run) == [3, 4]


@pytest.mark.thorough
def test_windows_recur(tmp_path: Path) -> None:
    train(profiler_of(tmp_path, startStep=2, numSteps=1, everySteps=3), *range(1, 9))

    assert [name.split("/")[0] for name in list_traces(tmp_path)[::2]] == [
        f"step-00000000{step}.g1" for step in (2, 5, 8)
    ]


def test_a_world_that_begins_or_ends_inside_a_window_traces_its_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    train(profiler_of(tmp_path, startStep=2, numSteps=6), 4, 5)

    run = "step-000000004.g1"
    assert steps_in(tmp_path, run) == [4, 5]
    assert caplog.messages[-1] == TRACE_WRITTEN.format(name=run, steps="4-5", folder=tmp_path / "profiles")


@pytest.mark.parametrize(("hosts", "count"), [("first", 0), ("all", 1)])
def test_other_hosts_are_traced_if_all_are(hosts: str, count: int, tmp_path: Path) -> None:
    train(profiler_of(tmp_path, process=1, startStep=1, numSteps=1, hosts=hosts), 1)

    assert len([name for name in list_traces(tmp_path) if name.endswith(".pb")]) == count


def test_nothing_is_traced_without_the_section(tmp_path: Path) -> None:
    train(profiler_of(tmp_path), *range(1, 20))

    assert list_traces(tmp_path) == []


@pytest.mark.thorough
def test_requested_steps_are_traced_after_each_other(tmp_path: Path) -> None:
    signals = ControlSignals()
    for name in ("request-a", "request-b"):
        signals.request_trace(TraceOrder(name=name, steps=2))
    train(profiler_of(tmp_path, 1, signals), *range(7, 12))

    assert {name.split("/")[0] for name in list_traces(tmp_path)} == {"request-a", "request-b"}
    assert (steps_in(tmp_path, "request-a"), steps_in(tmp_path, "request-b")) == ([7, 8], [9, 10])


def test_a_profiler_that_does_not_start_costs_no_step_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with jax.profiler.ProfileSession():
        train(profiler_of(tmp_path, startStep=1, numSteps=1, everySteps=2), 1, 2, 3)

    (message,) = caplog.messages
    assert message.startswith("trace not written name=step-000000001.g1 error=Profile has already been started")


def test_a_store_that_fails_costs_the_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "profiles").write_text("not a folder")
    monkeypatch.setattr(step_profiler, "CLOSE_SECONDS", 60)
    train(profiler_of(tmp_path, startStep=1, numSteps=1), 1, 2)

    (message,) = caplog.messages
    assert message.startswith("trace not written name=step-000000001.g1 error=")


def test_a_failing_world_does_not_wait_for_its_trace(tmp_path: Path) -> None:
    profiler = profiler_of(tmp_path, startStep=1, numSteps=3)
    profiler.begin_step(1, jnp.ones(()))
    profiler.__exit__(RuntimeError, RuntimeError("a peer is lost"), None)

    assert list_traces(tmp_path) == []
    profiler._trace.session.stop()  # type: ignore[union-attr]  # the process of a real world ends here
