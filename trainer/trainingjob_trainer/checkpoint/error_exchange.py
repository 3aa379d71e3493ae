"""Error exchange after each stage of a collective write to a store: all processes learn of every error."""

import json
import logging
import os
from collections.abc import Callable

from jax.errors import JaxRuntimeError

from trainingjob_trainer.runtime.errors import TrainingError, shorten
from trainingjob_trainer.runtime.process_group import ProcessGroup

LOG = logging.getLogger(__name__)
MAX_PROBLEM = 512


class SaveFailedError(Exception):
    """A save or copy failed on a host, for the reason in the text. All processes know, and training can continue."""


class ErrorExchange:
    """The exchange of results after the stages of consecutive operations; `name` is the host in messages.

    `prefix` separates the exchange from others. `seconds` is how long the first process waits for the last.
    """

    def __init__(self, peers: ProcessGroup, name: str, prefix: str, seconds: float) -> None:
        self._peers = peers
        self._name = name
        self._prefix = prefix
        self._seconds = seconds
        self._operation = 0
        self._stage = 0
        self.lost_process_error: JaxRuntimeError | None = None
        """The error that showed a lost process. None: all have answered so far."""

    def begin(self) -> None:
        """Begin the next operation."""
        self._operation += 1
        self._stage = 0

    def run_stage[T](self, operation: Callable[[], T]) -> T:
        """Run this process's part of a stage, then exchange errors with all processes.

        Raises:
            SaveFailedError: a process failed.
            JaxRuntimeError: a process does not answer any more.
        """
        problem = ""
        try:
            result = operation()
        except (OSError, ValueError, TrainingError) as error:
            problem = describe_error(error)
        except JaxRuntimeError:
            raise
        except Exception as error:  # the other processes wait for the result, whatever it is
            LOG.exception("a stage failed operation=%s/%d", self._prefix, self._operation)
            problem = describe_unexpected(error)
        self.exchange_results(problem)
        return result

    def exchange_results(self, problem: str = "", value: str = "") -> list[str]:
        """Exchange the results of a stage; return the value of each process, in process order.

        Raises:
            SaveFailedError: a process reports a problem.
            JaxRuntimeError: a process does not answer any more.
        """
        name = f"{self._prefix}/{self._operation}/{self._stage}"
        self._stage += 1
        problem = f"{self._name}: {problem}" if problem else ""
        try:
            answers = self._peers.exchange(name, json.dumps([problem, value]), self._seconds)
        except JaxRuntimeError as error:
            self.lost_process_error = error
            raise
        votes: list[tuple[str, str]] = [json.loads(answer) for answer in answers]
        if failed := next((failed for failed, _ in votes if failed), ""):
            raise SaveFailedError(failed)
        return [value for _, value in votes]


def describe_error(error: Exception) -> str:
    """Return an error as text, as the operating system describes it where there is an error number."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return shorten(" ".join(str(error).split()) or type(error).__name__, MAX_PROBLEM)


def describe_unexpected(error: Exception) -> str:
    """Return an error as text with its type: the text alone may be a number or a name."""
    return f"{type(error).__name__}: {describe_error(error)}"
