"""A trainer process that is forked from a process with all imports, which take most of the time of a tiny world.

An agent starts each trainer with a separate interpreter; tests of agents do the same.
"""

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from multiprocessing.reduction import DupFd
from typing import Any

import jax
from jaxlib import xla_client

from trainingjob_agent.trainer_protocol import EVENTS_FD_VARIABLE
from trainingjob_trainer import main
from trainingjob_trainer.runtime.preflight import expected_digests

expected_digests()  # once for all that are forked
# OpenBLAS has a thread by then, which it ends and starts again where a process forks.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload([__name__])
INDICES = "TEST_PROCESS_INDICES"
"""Where it is set, what the runtime calls each process of a world, as the runtime of a TPU does of its own: `1,0`."""


class Forked:
    """A trainer process and its pipes, with the interface of `subprocess.Popen`; it reports events on `events`."""

    def __init__(self, environment: dict[str, str]) -> None:
        stdin, to_stdin = os.pipe()
        from_stdout, stdout = os.pipe()
        from_events, events = os.pipe()
        self.stdin = os.fdopen(to_stdin, "wb", buffering=0)
        self.stdout = os.fdopen(from_stdout, "rb")
        self.events = os.fdopen(from_events, "rb")
        theirs = stdin, stdout, events
        self._process = FORKING.Process(target=_become, args=(*map(_Handed, theirs), environment), daemon=True)
        self._process.start()
        for end in theirs:
            os.close(end)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        assert code is not None, f"process {self.pid} has not ended after {timeout} s"
        return code

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


class _Handed:
    """A file descriptor that arrives in the process as its number there."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (DupFd(self._number),)


def _receive(duplicate: Any) -> int:
    return int(duplicate.detach())


def _become(stdin: int, stdout: int, events: int, environment: dict[str, str]) -> None:
    """Be a trainer that was just started with these pipes and this environment, until its end."""
    for number, place in ((stdin, 0), (stdout, 1), (stdout, 2)):
        os.dup2(number, place)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # multiprocessing has put another one there
    os.environ.clear()
    os.environ.update(environment | {EVENTS_FD_VARIABLE: str(events)})
    jax.config.update("jax_platforms", "cpu")
    if indices := environment.get(INDICES):
        _renumber([int(index) for index in indices.split(",")])
    main.main()


def _renumber(indices: Sequence[int]) -> None:
    """Have the runtime call the processes of a world by other numbers than JAX is given, as a TPU's does."""
    make = xla_client.make_cpu_client

    def make_renumbered(*, node_id: int, **others: Any) -> Any:
        return make(node_id=indices[node_id], **others)

    xla_client.make_cpu_client = make_renumbered
