"""Repeated events are counted, and written again after a while, whatever the clock does."""

from datetime import timedelta
from typing import Any

from tests.support.builders import NOW
from trainingjob_operator.shell.events import EventRecorder

JOB = {"apiVersion": "v", "kind": "TrainingJob", "metadata": {"name": "a", "namespace": "b", "uid": "c"}}


class FakeApi:
    """Records the counts of the written events."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    async def apply(self, kind: Any, manifest: Any) -> None:
        self.counts.append(manifest["count"])


async def test_repeats_are_written_after_the_clock_is_set_back() -> None:
    api, now = FakeApi(), NOW
    recorder = EventRecorder(api, lambda: now)  # type: ignore[arg-type]

    for seconds in (0, 10, -7200, 10, 10, 60):
        now += timedelta(seconds=seconds)
        await recorder.write(JOB, warning=True, reason="SliceLost", message="slice 1 lost")

    assert api.counts == [1, 3, 6]
