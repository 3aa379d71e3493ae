"""The results of a soak as tables."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from e2e.soak.soak_run import SoakResult
from trainingjob_api.status.world_status import Attempt
from trainingjob_operator.core.units import pluralize


def list_recoveries(attempts: Sequence[Attempt]) -> dict[str, list[Attempt]]:
    """Return the attempts that recovered, by the reason for which the attempt before them ended."""
    found: dict[str, list[Attempt]] = defaultdict(list)
    for before, after in pairwise(attempts):
        if before.cause and after.recovery_seconds is not None:
            found[before.cause.reason].append(after)
    return dict(found)


def show(results: Sequence[SoakResult], console: Console) -> None:
    """Print the injected faults, the recoveries by reason, and the number of problems."""
    faults = sum((result.faults for result in results), Counter())
    table = Table("fault", "times", title=f"{pluralize(faults.total(), 'fault')} on {pluralize(len(results), 'job')}")
    for name, times in faults.most_common():
        table.add_row(name, str(times))
    console.print(table)
    recoveries: dict[str, list[Attempt]] = defaultdict(list)
    for result in results:
        for reason, attempts in list_recoveries(result.attempts).items():
            recoveries[reason] += attempts
    table = Table("world ended by", "times", "back in s: median", "longest", "steps lost: median", "most")
    for reason, attempts in sorted(recoveries.items(), key=lambda item: -len(item[1])):
        seconds = [attempt.recovery_seconds or 0.0 for attempt in attempts]
        lost = [attempt.lost_steps or 0 for attempt in attempts]
        cells = (statistics.median(seconds), max(seconds), statistics.median(lost), max(lost))
        table.add_row(reason, str(len(attempts)), *(f"{cell:.3g}" for cell in cells))
    console.print(table)
    recovery_seconds = sorted(seconds for result in results for seconds in result.seconds_to_recover)
    if recovery_seconds:
        median, longest = statistics.median(recovery_seconds), recovery_seconds[-1]
        console.print(f"from a burst to the next saved step: median {median:.1f} s, longest {longest:.1f} s")
    problems = sum(len(result.problems) for result in results)
    console.print(pluralize(problems, "problem"), style="bold red" if problems else "bold green")
