"""Faults put into the code one by one, and the fast tests that must notice: `make mutations`, or ONLY=name.

`mutation_tables` has the rows. A row runs in seconds, in a copy of the repository.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.mutation_tables.mutation import Mutation
from tests.mutation_tables.tables import MUTATIONS

ROOT = Path(__file__).parent.parent
FOLDERS = ("operator", "trainer", "crds", ".")
TIMEOUT_SECONDS = 300
NOTICED = (1, -signal.SIGSEGV, -signal.SIGABRT)
"""How pytest ends where tests failed, or ended the process. Anything but success is else a mistake in the table."""


def find_stale(mutations: Iterable[Mutation]) -> list[str]:
    """Return the rows whose line does not occur exactly once in its file."""
    return [row.name for row in mutations if (ROOT / row.file).read_text().count(row.old) != 1]


def copy_repository(target: Path) -> None:
    """Copy what git tracks, and what it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def survives(row: Mutation, copy: Path) -> bool:
    """Return whether the tests of a row pass although its fault is in the code."""
    path = copy / row.file
    good = path.read_text()
    path.write_text(good.replace(row.old, row.new))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not cluster"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(str(copy / folder) for folder in FOLDERS),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        ended = subprocess.run(
            [*command, *row.tests], cwd=copy, env=environment, timeout=TIMEOUT_SECONDS, check=False, capture_output=True
        )
    except subprocess.TimeoutExpired:
        return False  # it hangs: that is noticed too
    finally:
        path.write_text(good)
    if ended.returncode not in (0, *NOTICED):
        raise SystemExit(f"{row.name}: pytest cannot run {row.tests}:\n{ended.stdout.decode()[-2000:]}")
    return ended.returncode == 0


def main() -> None:
    """Run all rows, or those whose name contains the first argument."""
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    if stale := find_stale(MUTATIONS):
        raise SystemExit(f"these rows name a line that is not there, or not once: {', '.join(stale)}")
    rows = [row for row in MUTATIONS if only in row.name]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy_repository(Path(folder))
        for number, row in enumerate(rows, 1):
            has_survived = survives(row, Path(folder))
            survivors += [row.name] * has_survived
            print(f"{number:>3}/{len(rows)}  {'SURVIVED' if has_survived else 'killed  '}  {row.name}", flush=True)
    print(f"{len(rows) - len(survivors)} of {len(rows)} mutations killed")
    raise SystemExit(bool(survivors))


if __name__ == "__main__":
    main()
