"""Stages of what all processes of a world do to a store together: after each, all know what went wrong on any."""

import json
import os

from jax.errors import JaxRuntimeError

from trainingjob_trainer.failures import shorten
from trainingjob_trainer.world import Peers

MAX_PROBLEM = 512


class SaveFailedError(Exception):
    """A step could not be saved or copied on some host, in words. All processes know it, and training can go on."""


class Votes:
    """What the processes of a world say after the stages of one thing after another; `name` is this host's, for people.

    `prefix` sets apart what else they exchange; `seconds` is how long the first waits for the last.
    """

    def __init__(self, peers: Peers, name: str, prefix: str, seconds: float) -> None:
        self._peers = peers
        self._name = name
        self._prefix = prefix
        self._seconds = seconds
        self._number = 0
        self._cast = 0
        self.lost: JaxRuntimeError | None = None
        """What was seen of a process that is gone. None: all have answered so far."""

    def begin(self) -> None:
        """Begin the next thing that takes votes."""
        self._number += 1
        self._cast = 0

    def cast(self, problem: str = "", said: str = "") -> list[str]:
        """Return what each process says after a stage, in process order.

        Raises:
            SaveFailedError: one of them says what is wrong.
            JaxRuntimeError: one of them says nothing any more.
        """
        name = f"{self._prefix}/{self._number}/{self._cast}"
        self._cast += 1
        problem = f"{self._name}: {problem}" if problem else ""
        try:
            answers = self._peers.exchange(name, json.dumps([problem, said]), self._seconds)
        except JaxRuntimeError as error:
            self.lost = error
            raise
        votes: list[tuple[str, str]] = [json.loads(answer) for answer in answers]
        if failed := next((failed for failed, _ in votes if failed), ""):
            raise SaveFailedError(failed)
        return [words for _, words in votes]


def describe(error: Exception) -> str:
    """Return what went wrong, in the operating system's words where it has any."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return shorten(" ".join(str(error).split()) or type(error).__name__, MAX_PROBLEM)
