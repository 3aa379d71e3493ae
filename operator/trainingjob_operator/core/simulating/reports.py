"""Reports of the agents of simulated hosts."""

from functools import lru_cache
from typing import Any

from trainingjob_api.protocol import Evidence, Failure, FailureReason, HostReport, Phase, ProcessState, Progress
from trainingjob_operator.core.simulating.faults import Kind
from trainingjob_operator.core.simulating.training import Training

JOB, UID, NAMESPACE = "simulated", "simulated", "default"


@lru_cache(maxsize=4096)
def report_idle(number: int, pod_uid: str) -> HostReport:
    """Return the report of a host that can join a world."""
    return _make(number, pod_uid, standby=True)


def report_member(number: int, pod_uid: str, training: Training, heard: float) -> HostReport:
    """Return the report of a world's member at a time.

    All members report the same, except the culprit. The pod identifies the sender, so one report can stand for all of
    them.
    """
    moment = training.at(heard)
    has_begun = moment.phase is not Phase.RESTORING
    is_culprit = number == training.culprit and training.broken is not None and heard >= training.broken
    has_crashed = is_culprit and training.fault is Kind.CRASH
    return _make(
        number,
        pod_uid,
        standby=has_begun,
        generation=training.generation,
        phase=Phase.FAILED if has_crashed else moment.phase,
        progress=Progress.model_construct(
            step=moment.step, step_seconds=training.step_seconds, typical_seconds=training.step_seconds
        )
        if has_begun and moment.step > training.restored
        else None,
        restored=training.restored if has_begun else None,
        tier="ram" if training.restored > training.saved else "durable",
        committed=moment.committed if has_begun and moment.committed > training.saved else None,
        failure=_make_failure(moment.step + 1) if has_crashed else None,
        evidence=_make_evidence(moment.step, is_behind=is_culprit)
        if training.examined is not None and heard >= training.examined
        else None,
        phase_seconds=training.known_seconds,
    )


def _make_failure(step: int) -> Failure:
    return Failure(reason=FailureReason.KILLED, message="the trainer was ended by SIGSEGV", step=step, signal="SIGSEGV")


def _make_evidence(step: int, *, is_behind: bool) -> Evidence:
    entered = step + (0 if is_behind else 1)
    return Evidence(state=ProcessState.SLEEPING, cores=0.0, entered=entered, newest=f"step {entered}")


def _make(number: int, pod_uid: str, **state: Any) -> HostReport:
    return HostReport.model_construct(
        job_uid=UID,
        pod=f"{JOB}-{number}",
        pod_uid=pod_uid,
        slice=number,
        host=0,
        address=f"host-{number}",
        instance=pod_uid,
        port=1,
        **state,
    )
