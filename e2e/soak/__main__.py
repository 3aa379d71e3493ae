"""A soak: seeded random faults on jobs of this machine, one job after another, and what was found.

`python -m e2e.soak` injects 1,000 faults; `--seconds` ends that after a time, and the job that runs then is trained to
its end and judged; `--seed` gives the first job's seed. Two soaks of one seed draw the same faults; what these find
running at their moment differs.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from math import inf
from pathlib import Path

from rich.console import Console

from e2e.soak.report import show
from e2e.soak.soak_run import SoakResult, run_reference, run_soak_job

FAULTS = 1000


async def soak(num_faults: int, seconds: float, seed: int, folder: Path, console: Console) -> list[SoakResult]:
    """Run jobs under faults, one after another, until there were enough faults or the time is over."""
    cache = folder / "cache"
    cache.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    until = start + seconds
    reference = await run_reference(folder / "undisturbed", cache, console)
    results: list[SoakResult] = []
    num_injected = 0
    while num_injected < num_faults and time.monotonic() < until:
        number = seed + len(results)
        result = await run_soak_job(
            number, num_faults - num_injected, until, folder / f"job-{number}", cache, reference
        )
        results.append(result)
        num_injected += result.faults.total()
        console.print(
            f"{time.monotonic() - start:7.1f} s  job {number}: {result.faults.total()} faults, "
            f"{len(result.attempts)} worlds in {result.seconds:.1f} s; {num_injected} faults so far"
        )
        for problem in result.problems:
            console.print(f"          {problem}", style="bold red", markup=False)
    return results


def main() -> int:
    """Run a soak and print the results; return the exit code, 0 if there were no problems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=FAULTS, help="number of faults to inject")
    parser.add_argument("--seconds", type=float, default=inf, help="inject no fault after so many seconds")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first job; the next ones count up")
    parser.add_argument("--keep", type=Path, help="a folder for the jobs' files and logs; without it they are deleted")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as made:
        folder = options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        logging.basicConfig(filename=folder / "operators.log", level=logging.INFO)
        results = asyncio.run(soak(options.faults, options.seconds, options.seed, folder, console))
    show(results, console)
    return 1 if any(result.problems for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
