"""A trainer without JAX heartbeats, so that its peers aborted: diagnostics first, then its diagnosis."""

import pytest

from tests.support.scenes import Scene, claim, fail, trained
from trainingjob_api.protocol import Diagnostics, FailureReason, ProcessState
from trainingjob_operator.core.decide.decisions import CollectDiagnostics


def evidence(state: ProcessState = ProcessState.SLEEPING, cores: float = 0.0, stack: str = "") -> Diagnostics:
    return Diagnostics(state=state, cores=cores, entered=11, newest="step 11", stack=stack)


def missed(still: float = 0.1, **changes: object) -> Scene:
    """Return a world in which JAX aborted a trainer, because the heartbeats of another host's trainer were lost."""
    scene = fail(trained(), 0, 0, reason=FailureReason.PEER, missed=[3], still=still)
    return scene.hear(1, 1, **{"still": 25.0, **changes})


SHOWN: dict[str, tuple[Scene, str]] = {
    "stopped": (missed(evidence=evidence(ProcessState.STOPPED)), "its process is stopped"),
    "held by the kernel": (
        missed(evidence=evidence(ProcessState.WAITING_FOR_STORAGE)),
        "its process waits for storage",
    ),
    "asleep": (missed(evidence=evidence()), "its process is idle and last entered step 11"),
    "at work: the network cuts it off": (
        missed(evidence=evidence(ProcessState.RUNNING, 1.96)),
        "its process uses 2.0 cores and last entered step 11",
    ),
    "its agent does not tell in time": (missed(still=3.1), "its agent sent no diagnostics"),
}


@pytest.mark.parametrize(("scene", "want"), SHOWN.values(), ids=SHOWN.keys())
def test_a_host_that_jax_missed_is_named_by_what_its_process_shows(scene: Scene, want: str) -> None:
    end = claim(scene).end

    assert end is not None
    assert (end.cause.slice, end.cause.host, end.cause.node) == (1, 1, "node-1-1")
    assert (end.cause.phase, end.cause.step) == ("training", 11)
    assert end.cause.message == (
        f"host 1 of slice 1 hangs: its peers aborted after missing the JAX heartbeats of its process, and {want}"
    )
    assert (end.is_counted, end.is_single_node) == (True, True)


def test_diagnostics_of_a_missed_host_precede_the_restart_of_its_trainer() -> None:
    decision = missed().decide()

    assert isinstance(decision, CollectDiagnostics)
    assert (
        "peers aborted after missing JAX heartbeats from host 1 of slice 1; collecting diagnostics" in decision.message
    )


def test_cause_contains_the_stack_of_the_missed_host() -> None:
    end = claim(missed(evidence=evidence(stack="Thread 0x1 (most recent call first):"))).end

    assert end is not None
    assert end.cause.log == "Thread 0x1 (most recent call first):"
