"""Lost JAX heartbeats: the errors of each kind of process, from real processes, one of which is stopped."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from select import select

import pytest
from jax.errors import JaxRuntimeError

from e2e.cluster.run_program import free_port
from tests.support.cases import sample
from trainingjob_agent.exit_reason import explain_exit
from trainingjob_agent.state import ChildExited
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.protocol import Failure, FailureReason
from trainingjob_trainer import main
from trainingjob_trainer.main import PEER_ERROR_WAIT_SECONDS
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.failure_records import failure_record

WORLD = """
import sys, threading, jax
from jax._src import distributed
address, number, meets = sys.argv[1:]
jax.distributed.initialize(address, 2, int(number), heartbeat_timeout_seconds=2)
print("connected", flush=True)
try:
    if meets == "meets":
        distributed.global_state.client.wait_at_barrier("meeting", 60_000)
    threading.Event().wait()
except Exception as error:
    print(f"ERROR{error}", flush=True)
"""


@contextmanager
def pair(program: str, *arguments: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Run a program in two processes of one world; each has the address, its number, and its own argument, if any."""
    address = f"127.0.0.1:{free_port()}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, address, str(number), *arguments[number : number + 1]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"JAX_PLATFORMS": "cpu", "PATH": ""},
        )
        for number in range(2)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def explain_signal(ended: "subprocess.Popen[str]", log: str) -> Failure:
    """Return an agent's report of a process that a signal has ended."""
    name = signal.Signals(-ended.returncode).name
    return explain_exit(ChildExited(ended.pid, signal=name, log=log), step=1, memory="")


def live(missed: int, *, meets: bool) -> Failure:
    """Return the report about the end of one of two processes while the other is stopped."""
    with pair(WORLD, *("meets" if meets and number != missed else "waits" for number in range(2))) as processes:
        ended = processes[1 - missed]
        for process in processes:
            assert process.stdout
            assert any(line == "connected\n" for line in process.stdout)
        processes[missed].send_signal(signal.SIGSTOP)
        log, _ = ended.communicate(timeout=60)
    if "ERROR" in log:
        return failure_record(JaxRuntimeError(log.partition("ERROR")[2]), step=None)
    return explain_signal(ended, log)


LATE_WORLD = """
import os, signal, sys, time
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from trainingjob_agent.heartbeat_errors import expects_heartbeat_report
address, number = sys.argv[1:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, 2, int(number), heartbeat_timeout_seconds=33)
mesh = Mesh(np.array(jax.devices()), ("all",))
if number == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    parts = NamedSharding(mesh, PartitionSpec("all"))
    ones = jax.make_array_from_callback((2,), parts, lambda index: np.ones(1))
    jax.jit(lambda array: array.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))(ones).block_until_ready()
except Exception as error:
    print(f"about to tell: {expects_heartbeat_report(str(error))}", flush=True)
    time.sleep(20)
"""


@pytest.mark.slow
def test_a_process_that_gloo_gave_up_on_is_named_by_jax_soon_after() -> None:
    with pair(LATE_WORLD) as processes:
        log, _ = processes[0].communicate(timeout=90)
    failure = explain_signal(processes[0], log)

    assert "about to tell: True" in log
    assert (failure.reason, failure.missed) == (FailureReason.PEER, (1,))


@pytest.mark.parametrize(
    ("words", "naps"),
    [
        (
            "UNKNOWN: Gloo context initialization failed: DEADLINE_EXCEEDED: GetKeyValue() timed out",
            [PEER_ERROR_WAIT_SECONDS],
        ),
        ("UNKNOWN: Gloo all-reduce failed: Connection closed by peer", []),
    ],
    ids=["one is late", "one is gone"],
)
def test_jax_may_name_the_missing_process_before_the_failure_is_reported(
    words: str, naps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    slept: list[float] = []

    def sleep(length: float) -> None:
        assert not select([reader], [], [], 0)[0], "nothing is told before"
        slept.append(length)

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr(main, "exit_now", sys.exit)

    with pytest.raises(SystemExit):
        main.report_failure_and_exit(JaxRuntimeError(words), AgentEvents(writer))

    os.close(writer)
    with os.fdopen(reader) as pipe:
        failure = AgentEvent.model_validate_json(pipe.read()).failure
    assert (slept, failure and failure.reason) == (naps, FailureReason.PEER)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("missed", "meets"),
    sample([(missed, meets) for missed in (1, 0) for meets in (False, True)], every=4),
)
def test_the_process_that_jax_missed_is_named_by_the_one_that_it_ended(missed: int, meets: bool) -> None:
    failure = live(missed, meets=meets)

    assert (failure.reason, failure.missed) == (FailureReason.PEER, (missed,))
