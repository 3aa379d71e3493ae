"""What JAX says of a process of which it hears nothing: the agent reads it."""

import signal
import subprocess
import sys

from tests.trainer.tiny import free_port
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.agent.endings import explain_end
from trainingjob_trainer.agent.state import Ended

WORLD = """
import sys, threading, jax
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]), heartbeat_timeout_seconds=2)
print("connected", flush=True)
threading.Event().wait()
"""


def test_the_process_that_jax_missed_is_named_by_the_one_that_it_ended() -> None:
    address = f"127.0.0.1:{free_port()}"
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", WORLD, address, str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"JAX_PLATFORMS": "cpu", "PATH": ""},
        )
        for number in range(2)
    )
    try:
        for process in (first, second):
            assert process.stdout
            assert any(line == "connected\n" for line in process.stdout)
        second.send_signal(signal.SIGSTOP)
        log, _ = first.communicate(timeout=60)
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()

    failure = explain_end(Ended(first.pid, signal=signal.Signals(-first.returncode).name, log=log), step=1, memory="")
    assert (failure.reason, failure.missed) == (FailureReason.PEER, (1,))
