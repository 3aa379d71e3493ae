"""What JAX says of a process of which it hears nothing, by whoever says it: real processes, one of them stopped."""

import signal
import subprocess
import sys

import pytest
from jax.errors import JaxRuntimeError

from tests.trainer.tiny import free_port
from trainingjob_api.protocol import Failure, FailureReason
from trainingjob_trainer.agent.endings import explain_end
from trainingjob_trainer.agent.state import Ended
from trainingjob_trainer.failures import explain

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


def live(missed: int, *, meets: bool) -> Failure:
    """Return what is told of the end of one process of two, when the other stands still."""
    address = f"127.0.0.1:{free_port()}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORLD, address, str(number), "meets" if meets and number != missed else "waits"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"JAX_PLATFORMS": "cpu", "PATH": ""},
        )
        for number in range(2)
    ]
    ended = processes[1 - missed]
    try:
        for process in processes:
            assert process.stdout
            assert any(line == "connected\n" for line in process.stdout)
        processes[missed].send_signal(signal.SIGSTOP)
        log, _ = ended.communicate(timeout=60)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    if "ERROR" in log:
        return explain(JaxRuntimeError(log.partition("ERROR")[2]), step=None)
    name = signal.Signals(-ended.returncode).name
    return explain_end(Ended(ended.pid, signal=name, log=log), step=1, memory="")


@pytest.mark.parametrize("meets", [False, True], ids=["while it trains", "at a meeting"])
@pytest.mark.parametrize("missed", [0, 1], ids=["the coordinator", "another"])
def test_the_process_that_jax_missed_is_named_by_the_one_that_it_ended(missed: int, meets: bool) -> None:
    failure = live(missed, meets=meets)

    assert (failure.reason, failure.missed) == (FailureReason.PEER, (missed,))
