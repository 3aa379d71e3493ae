"""Running other programs: one way to call them, one error that says what they said."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class ClusterError(Exception):
    """The cluster cannot do what was asked. The message says why and what to do next."""


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a program to its end and return what it printed.

    Raises:
        ClusterError: The program is missing or failed; the message ends with its last words.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, input=stdin, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ClusterError(f"cannot run `{words[0]}`: no such program") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise ClusterError(f"`{' '.join(words)[:300]}` failed with exit code {done.returncode}:\n{said}")
    return done.stdout


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float) -> None:
    """Return as soon as the condition holds; a condition that raises ClusterError does not hold yet.

    Raises:
        ClusterError: It did not hold within `seconds`.
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
