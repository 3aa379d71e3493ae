"""A host that stalls before the first step: the others wait for it at a barrier, and it is named."""

from pathlib import Path
from random import Random
from signal import SIGKILL, SIGSTOP

import pytest

from e2e.soak.harness import JobHarness, list_trainers, send_signal
from e2e.soak.job import make_spec
from tests.support.trainer.cases import takes_all_cases
from trainingjob_api.protocol import STARTUP_PHASES, HostReport, Phase

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 240.0
MEETING = (Phase.CONNECTING, Phase.RESTORING, Phase.COMPILING)
"""What ends with a meeting of all processes, none of which has made a step."""


class StandStill:
    """Stops the trainer of a slice's host: as a standby, or once it reports a phase that ends with a meeting.

    In the second case it may be anywhere in that phase: before it listens, before the others are registered, or later.
    """

    def __init__(self, harness: JobHarness, number: int, *, early: bool) -> None:
        self._harness = harness
        self._number = number
        self._early = early
        self._after = harness.checker.generation
        self.world = 0
        self.phase = Phase.IDLE
        if early:
            send_signal(SIGSTOP, *self._trainers()[1:])

    def hear(self, report: HostReport) -> None:
        phases = STARTUP_PHASES if self._early else MEETING
        is_wanted = report.slice == self._number and report.generation > self._after and report.phase in phases
        if is_wanted and not self.world:
            if not self._early:
                send_signal(SIGSTOP, *self._trainers()[:1])
            self.world, self.phase = report.generation, report.phase

    def _trainers(self) -> list[int]:
        (container,) = self._harness.machine.controllers.containers_of(self._number)
        return list_trainers(container)


STALLS = {
    "process 0 on its way": (0, False),
    "process 1 before it begins": (1, True),
    "process 0 before it begins": (0, True),
    "process 1 on its way": (1, False),
}
"""Number of the process, and whether it stalls before it begins. Each kind of both is in the first two."""
NUM_STALLS = len(STALLS) if takes_all_cases() else 2


@pytest.mark.parametrize(("number", "early"), [*STALLS.values()][:NUM_STALLS], ids=[*STALLS][:NUM_STALLS])
async def test_host_that_stalls_before_the_first_step_is_named(number: int, early: bool, tmp_path: Path) -> None:
    spec = make_spec()
    job = spec | {"training": {**spec["training"], "steps": 10_000_000}}
    lines: list[str] = []
    harness = JobHarness(job, tmp_path / "job", tmp_path / "cache", Random(1), 0.5, lines.append)  # noqa: S311
    (tmp_path / "cache").mkdir()
    standbys: set[int] = set()
    async with harness.running():
        await harness.wait_for("both slices", lambda: harness.status.display.slices == "2/2", TIMEOUT_SECONDS)
        await harness.wait_for("a saved step", lambda: harness.checker.committed > 0, TIMEOUT_SECONDS)
        harness.report_proxy.listeners.append(lambda report: standbys.update([report.slice] if report.standby else []))
        await harness.wait_for("standbys on both hosts", lambda: standbys == {0, 1}, TIMEOUT_SECONDS)
        still = StandStill(harness, number, early=early)
        harness.report_proxy.listeners.append(still.hear)
        (container,) = harness.machine.controllers.containers_of(1 - number)
        send_signal(SIGKILL, *list_trainers(container)[:1])

        await harness.wait_for(
            "a world after the one that stood still",
            lambda: bool(still.world) and harness.checker.generation > still.world,
            TIMEOUT_SECONDS,
        )

    cause = harness.checker.attempts[still.world].cause
    assert cause
    assert (cause.reason, cause.slice, cause.host) == ("HungHost", number, 0), (still.phase, cause, lines)
    assert not harness.checker.problems
