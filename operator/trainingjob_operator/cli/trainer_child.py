"""A program of the trainer in a child process: a request on its input, an answer a line on its output.

The command line imports neither the trainer nor JAX.
"""

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import BaseModel, ValidationError

from trainingjob_api.base import is_bucket
from trainingjob_operator.cli.child_process import KILL_WITH_PARENT
from trainingjob_operator.cli.errors import NoResultError, UsageError

MAX_ERROR_LINES = 20
"""Number of lines of the program's output to show when it ends without an answer."""


def require_trainer(feature: str) -> None:
    """Check that the trainer is installed, which a command or option needs.

    Raises:
        CommandError: it is missing.
    """
    if importlib.util.find_spec("trainingjob_trainer") is None or importlib.util.find_spec("jax") is None:
        raise UsageError(
            f"{feature} needs the trainer, which is not installed here: pip install 'trainingjob[trainer]'."
        )


def absolute_location(location: str) -> str:
    """Return the absolute path of a folder of this machine, or the URI of a folder of a bucket, for a request."""
    return location if is_bucket(location) else str(Path(location).absolute())


class TrainerChild:
    """One run of a program. `arguments` are those of Python, and `name` is its noun in messages."""

    def __init__(self, arguments: Sequence[str], name: str) -> None:
        self._arguments = arguments
        self._name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `__exit__`

    def __enter__(self) -> Self:
        """Start the program."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            (sys.executable, *self._arguments),
            stdin=pipe,
            stdout=pipe,
            stderr=self._log,
            text=True,
            preexec_fn=KILL_WITH_PARENT,  # noqa: PLW1509  # prctl takes no lock
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program."""
        self._process.kill()
        with self._process, self._log:
            pass

    def answer(self, request: str) -> Iterator[str]:
        """Yield the lines of the answer to a request.

        Raises:
            CommandError: the program failed.
        """
        assert self._process.stdin  # noqa: S101
        assert self._process.stdout  # noqa: S101
        try:
            self._process.stdin.write(request)
            self._process.stdin.close()
        except BrokenPipeError:  # the program has already ended; its output gives the reason
            pass
        else:
            yield from self._process.stdout
        if self._process.wait():
            raise NoResultError(f"the {self._name} exited with code {self._process.returncode}:\n{self._output_tail()}")

    def parse[T: BaseModel](self, model: type[T], line: str) -> T:
        """Return an answer.

        Raises:
            CommandError: the line cannot be read.
        """
        try:
            return model.model_validate_json(line)
        except ValidationError as error:
            raise NoResultError(f"the {self._name}'s output cannot be read: {line.strip()[:500]}") from error

    def _output_tail(self) -> str:
        self._log.seek(0)
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-MAX_ERROR_LINES:])
