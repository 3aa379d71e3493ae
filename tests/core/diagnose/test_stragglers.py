"""The host that all others wait for: named when it is clear, kept until it is over, and never for noise."""

import random
from collections.abc import Sequence

import pytest

from tests.support.builders import NOW, make_report
from tests.support.scenes import Scene, trained
from trainingjob_api.protocol import Phase, Progress
from trainingjob_api.status.fault_status import Straggler
from trainingjob_api.world import Member
from trainingjob_operator.core.diagnose.stragglers import describe_straggler, detect_straggler, update_straggler
from trainingjob_operator.core.observe.heartbeats import LatestReport
from trainingjob_operator.core.observe.members import MemberView
from trainingjob_operator.core.report.job_events import list_events
from trainingjob_operator.core.report.status_writes import should_write

WINDOW = 32


def seat(index: int, progress: Progress | None) -> MemberView:
    member = Member(
        process=index, slice=index // 2, host=index % 2, pod="p", pod_uid=str(index), address="", node=f"n{index}"
    )
    return MemberView(member, None, LatestReport(make_report(generation=1, progress=progress), 0.1, 0.1), 1)


def waiting(*waits: float | None, step: float = 1.0) -> list[MemberView]:
    return [seat(index, Progress(step=40, typical_seconds=step, wait_seconds=wait)) for index, wait in enumerate(waits)]


def stalled(*shares: float | None) -> list[MemberView]:
    """Return hosts that wait alike, as they do for a host that stalls in the middle of steps."""
    return [
        seat(index, Progress(step=40, typical_seconds=1.0, wait_seconds=0.9, stalled_share=share))
        for index, share in enumerate(shares)
    ]


def known_at(index: int) -> Straggler:
    return Straggler(slice=index // 2, host=index % 2, node=f"n{index}", ratio=0.4, since="2026-11-21T11:00:00.000Z")


type Case = tuple[Sequence[MemberView], Straggler | None, tuple[int, float] | None]

LATE: dict[str, Case] = {
    "one comes late to every step": (waiting(0.9, 0.1, 0.95, 0.92), None, (1, 0.8)),
    "as measured: 0.15 s late to steps of 0.17 s": (waiting(0.171, 0.02, step=0.171), None, (1, 0.883)),
    "all wait alike": (waiting(0.5, 0.52, 0.48), None, None),
    "two come late": (waiting(0.9, 0.1, 0.12), None, None),
    "one comes a little late": (waiting(0.9, 0.7, 0.9), None, None),
    "all wait little": (waiting(0.1, 0.0, 0.1), None, None),
    "the wait of one is more than half of the others'": (waiting(0.9, 0.5, 0.9), None, None),
    "one has not told for long enough": (waiting(0.9, 0.1, None), None, None),
    "one has told nothing": ([*waiting(0.9, 0.1), seat(2, None)], None, None),
    "steps that take no time": (waiting(0.0, 0.0, step=0.0), None, None),
    "a world of one host": (waiting(0.1), None, None),
    "no world": ([], None, None),
    "named before, still a little late": (waiting(0.4, 0.2, 0.4), known_at(1), (1, 0.2)),
    "another was named before": (waiting(0.4, 0.2, 0.4), known_at(0), None),
    "named before, others wait less than twice as long": (waiting(0.42, 0.22, 0.42), known_at(1), (1, 0.2)),
    "named before, no longer late": (waiting(0.4, 0.3, 0.4), known_at(1), None),
    "longer than the step, by rounding": (waiting(1.1, 0.1, 1.2), None, (1, 0.9)),
}


STALLED: dict[str, Case] = {
    "one stands still most of the time": (stalled(0.02, 0.01, 0.55, 0.02), None, (2, 0.53)),
    "all stand still alike: their node is crowded": (stalled(0.4, 0.5, 0.45), None, None),
    "two stand still": (stalled(0.5, 0.5, 0.01), None, None),
    "one stands still a little": (stalled(0.2, 0.01, 0.02), None, None),
    "another stands still for half as long, and no longer": (stalled(0.8, 0.4, 0.0), None, (0, 0.4)),
    "another stands still for more than half as long": (stalled(0.8, 0.45, 0.0), None, None),
    "nobody stands still": (stalled(0.0, 0.0), None, None),
    "one has not told for long enough": (stalled(0.6, 0.0, None), None, None),
    "a world of one host": (stalled(0.6), None, None),
    "named before, still a little": (stalled(0.0, 0.2), known_at(1), (1, 0.2)),
    "another was named before": (stalled(0.0, 0.2), known_at(0), None),
    "named before, hardly any longer": (stalled(0.0, 0.1), known_at(1), None),
}


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        *(pytest.param(case, "SlowStep", id=name) for name, case in LATE.items()),
        *(pytest.param(case, "CpuStarved", id=f"still: {name}") for name, case in STALLED.items()),
    ],
)
def test_find_slow(case: Case, reason: str) -> None:
    seats, known, want = case

    slow = detect_straggler(seats, known)

    assert ((slow.member_view.member.process, slow.ratio) if slow else None) == want
    assert slow is None or slow.reason == reason


def test_starved_host_that_is_also_late_is_reported_as_starved() -> None:
    reported = [(0.1, 0.6), (0.9, 0.02), (0.9, 0.01)]
    seats = [
        seat(index, Progress(step=40, typical_seconds=1.0, wait_seconds=wait, stalled_share=share))
        for index, (wait, share) in enumerate(reported)
    ]

    slow = detect_straggler(seats, None)

    assert slow
    assert (slow.member_view.member.process, slow.reason, slow.ratio) == (0, "CpuStarved", 0.58)
    straggler = update_straggler(seats, None, NOW)
    assert straggler
    words = (
        "host 0 of slice 0 (node n0) is a straggler: its trainer is not scheduled for 58.0 % more of the time than any "
        "other trainer"
    )
    assert describe_straggler(straggler) == words


def train(seed: int, late: float) -> tuple[list[MemberView], int]:
    """Return a world after a window of noisy steps, in which one host is late by a share of the step, and that host.

    A host's own work beside a step is noisy, and now and then takes several times as long. Who is done first waits.
    """
    noise = random.Random(seed)  # noqa: S311  # the same noise each time
    num_hosts = noise.randint(2, 24)
    sick, spread, own = noise.randrange(num_hosts), noise.uniform(0.0, 0.25), noise.uniform(0.05, 0.5)
    waits: list[list[float]] = [[] for _ in range(num_hosts)]
    steps = []
    for _ in range(WINDOW):
        works = [own * noise.lognormvariate(0, spread) for _ in range(num_hosts)]
        if noise.random() < 0.1:
            works[noise.randrange(num_hosts)] *= 5
        works[sick] += late
        steps.append(max(*works, 1.0))  # the devices work meanwhile
        for index, work in enumerate(works):
            waits[index].append(steps[-1] - work)
    middle = WINDOW // 2
    progress = [
        Progress(step=40, typical_seconds=sorted(steps)[middle], wait_seconds=sorted(mine)[middle]) for mine in waits
    ]
    return [seat(index, one) for index, one in enumerate(progress)], sick


def test_twenty_stragglers_are_named_right() -> None:
    worlds = [train(seed, late=1.2) for seed in range(20)]

    right = [
        (slow := detect_straggler(seats, None)) is not None and slow.member_view.member.process == sick
        for seats, sick in worlds
    ]

    assert sum(right) >= 19


def test_no_host_is_named_for_noise() -> None:
    for seed in range(300):
        seats, _ = train(seed, late=0.0)

        assert detect_straggler(seats, None) is None, f"seed {seed}"


def slow_scene(*waits: float) -> Scene:
    scene = trained()
    for index, wait in enumerate(waits):
        progress = Progress(step=40, step_seconds=1.0, typical_seconds=1.0, wait_seconds=wait)
        scene.hear(index // 2, index % 2, progress=progress)
    return scene


def test_straggler_is_reported_once_and_keeps_training() -> None:
    scene = slow_scene(0.9, 0.9, 0.1, 0.9)
    before = scene.status

    seen = scene.see()
    decision = scene.step()
    reported = list_events(scene.plan, seen, decision, scene.status, None)
    seen = scene.see()
    again = list_events(scene.plan, seen, scene.step(1.0), scene.status, None)

    words = "host 0 of slice 1 (node node-1-0) is a straggler: all other hosts wait for it during 80.0 % of each step"
    assert [(one.reason, one.message, one.is_warning) for one in reported] == [("SlowHost", words, True)]
    assert again == ()
    straggler = scene.status.straggler
    assert straggler
    assert (straggler.slice, straggler.host, straggler.node, straggler.ratio) == (1, 0, "node-1-0", 0.8)
    assert should_write(before, scene.status, scene.now)
    assert (scene.status.phase, scene.status.restarts.total) == ("Running", 0)


def test_that_it_is_a_little_slower_now_is_no_reason_to_write() -> None:
    scene = slow_scene(0.9, 0.9, 0.1, 0.9)
    scene.step()
    before = scene.status
    progress = Progress(step=40, step_seconds=1.0, typical_seconds=1.0, wait_seconds=0.2)
    scene.hear(1, 0, progress=progress).step(1.0)

    assert scene.status.straggler
    assert before.straggler
    assert (scene.status.straggler.ratio, scene.status.straggler.since) == (0.7, before.straggler.since)
    assert not should_write(before, scene.status, scene.now)


def test_a_world_that_ended_has_no_straggler() -> None:
    scene = slow_scene(0.9, 0.9, 0.1, 0.9)
    scene.step()
    scene.hear_slice(0, 1, phase=Phase.LEFT).step(1.0)
    scene.train(step=41, progress=None)
    scene.step(1.0)

    assert scene.status.straggler is None


def test_another_host_is_another_straggler() -> None:
    first = update_straggler(waiting(0.1, 0.9, 0.9), None, NOW)
    second = update_straggler(waiting(0.9, 0.1, 0.9), first, NOW)

    assert first
    assert second
    assert (first.node, second.node) == ("n0", "n1")
