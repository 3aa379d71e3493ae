"""Execution of other programs, with one error type that includes their output."""

import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class ClusterError(Exception):
    """The cluster cannot carry out a request. The message gives the reason and the remedy."""


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program to its end and return its output.

    Raises:
        ClusterError: the program is missing or failed; the message ends with its last output.
    """
    arguments = [str(argument) for argument in argv]
    try:
        done = subprocess.run(arguments, input=stdin, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ClusterError(f"cannot run `{arguments[0]}`: no such program") from error
    if done.returncode != 0:
        raise _failure(arguments, done.returncode, done.stderr.strip() or done.stdout)
    return done.stdout


def run_streaming(
    argv: Sequence[str | Path], is_progress: Callable[[str], bool], *, cwd: Path, env: Mapping[str, str]
) -> None:
    """Run a program to its end and pass each line of its output to `is_progress`, which returns whether it is progress.

    Raises:
        ClusterError: the program failed; the message ends with its last output without progress lines.
    """
    arguments = [str(argument) for argument in argv]
    with subprocess.Popen(
        arguments, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None
        output = [line for line in process.stdout if not is_progress(line.rstrip())]
    if process.returncode != 0:
        raise _failure(arguments, process.returncode, "".join(output))


def _failure(arguments: Sequence[str], code: int, printed: str) -> ClusterError:
    return ClusterError(f"`{' '.join(arguments)[:300]}` failed with exit code {code}:\n{printed.strip()[-2000:]}")


def free_port(address: str = "127.0.0.1") -> int:
    """Return a TCP port of an address of this machine that no process uses now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float) -> None:
    """Return as soon as the condition holds. A condition that raises ClusterError does not hold yet.

    Raises:
        ClusterError: the condition did not hold within `seconds`.
    """
    deadline = time.monotonic() + seconds
    last: ClusterError | None = None
    while True:
        try:
            if condition():
                return
            last = None
        except ClusterError as error:
            last = error
        if time.monotonic() > deadline:
            raise ClusterError(f"waited {seconds:.0f} s in vain for {what}" + (f": {last}" if last else "")) from last
        time.sleep(0.1)
