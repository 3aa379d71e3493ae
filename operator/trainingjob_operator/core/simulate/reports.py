"""Reports of the agents of simulated hosts."""

from functools import lru_cache
from typing import Any

from trainingjob_api.protocol import Diagnostics, Failure, FailureReason, HostReport, Phase, ProcessState, Progress
from trainingjob_operator.core.simulate.faults import FaultKind
from trainingjob_operator.core.simulate.simulated_world import SimulatedWorld

JOB, UID, NAMESPACE = "simulated", "simulated", "default"


@lru_cache(maxsize=4096)
def idle_report(number: int, pod_uid: str) -> HostReport:
    """Return the report of a host that can join a world."""
    return _make(number, pod_uid, standby=True)


def member_report(number: int, pod_uid: str, training: SimulatedWorld, reported_at: float) -> HostReport:
    """Return the report of a world's member at a time.

    All members report the same, except the failed process. The pod identifies the sender, so one report can stand for
    all of them.
    """
    state = training.state_at(reported_at)
    has_started = state.phase is not Phase.RESTORING
    is_failed_process = (
        number == training.failed_slice and training.broken_at is not None and reported_at >= training.broken_at
    )
    has_crashed = is_failed_process and training.fault is FaultKind.CRASH
    return _make(
        number,
        pod_uid,
        standby=has_started,
        generation=training.generation,
        phase=Phase.FAILED if has_crashed else state.phase,
        progress=Progress.model_construct(
            step=state.step, step_seconds=training.step_seconds, typical_seconds=training.step_seconds
        )
        if has_started and state.step > training.restored_step
        else None,
        restored=training.restored_step if has_started else None,
        tier="ram" if training.restored_step > training.committed_step else "durable",
        committed=state.committed if has_started and state.committed > training.committed_step else None,
        failure=_make_failure(state.step + 1) if has_crashed else None,
        evidence=_make_evidence(state.step, is_behind=is_failed_process)
        if training.diagnostics_requested_at is not None and reported_at >= training.diagnostics_requested_at
        else None,
        phase_seconds=training.known_phase_seconds,
    )


def _make_failure(step: int) -> Failure:
    return Failure(reason=FailureReason.KILLED, message="the trainer was ended by SIGSEGV", step=step, signal="SIGSEGV")


def _make_evidence(step: int, *, is_behind: bool) -> Diagnostics:
    entered = step + (0 if is_behind else 1)
    return Diagnostics(state=ProcessState.SLEEPING, cores=0.0, entered=entered, newest=f"step {entered}")


@lru_cache(maxsize=4096)
def _starting_report(number: int, pod_uid: str) -> HostReport:
    return HostReport.model_construct(
        job_uid=UID,
        pod=f"{JOB}-{number}",
        pod_uid=pod_uid,
        slice=number,
        host=0,
        address=f"host-{number}",
        instance=pod_uid,
        port=1,
    )


def _make(number: int, pod_uid: str, **state: Any) -> HostReport:
    return _starting_report(number, pod_uid).model_copy(update=state)  # faster than constructing each one
