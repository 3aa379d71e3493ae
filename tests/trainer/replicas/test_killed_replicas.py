"""Replicas of real processes, one of which is killed: the other keeps its processes, and a new one joins.

The new one restores a checkpoint of the other one, and applies the rounds after it.
"""

import time
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.crew import PATIENCE
from tests.support.trainer.replica_process import ENDLESS_STEPS, SYNC_EVERY, Host, set_job, start_slice


def wait_until(is_done: Callable[[], bool], processes: Iterable[BaseProcess]) -> None:
    deadline = time.monotonic() + 2 * PATIENCE  # two slices import, connect and compile
    while not is_done():
        assert time.monotonic() < deadline
        assert not any((process.exitcode or 0) > 0 for process in processes)
        time.sleep(0.05)


def find_last_step(host: Host) -> int:
    return max((line["step"] for line in host.read_lines() if "step" in line), default=0)


def has_joined(host: Host) -> bool:
    return any("joined" in line for line in host.read_lines())


def rounds_of(hosts: Iterable[Host]) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the lines of the ends of rounds, by process and step."""
    return {(host.process, line["ended"]): line for host in hosts for line in host.read_lines() if "ended" in line}


@pytest.mark.slow
def test_a_killed_replica_stops_no_other_and_joins_a_later_round(tmp_path: Path) -> None:
    set_job(tmp_path, ())  # none trains yet: the first one to join would end a round without the other
    first, second = (start_slice(tmp_path, number, number + 1) for number in (0, 1))
    started = processes = [*first.values(), *second.values()]
    try:
        wait_until(lambda: all(has_joined(host) for host in (*first, *second)), processes)
        set_job(tmp_path, (0, 1))
        wait_until(lambda: all(find_last_step(host) >= 3 * SYNC_EVERY for host in (*first, *second)), processes)
        processes = list(first.values())  # a process of the other slice may end with an error before it is killed
        for process in second.values():
            process.kill()
        killed_at = time.monotonic()
        wait_until(lambda: any(tmp_path.glob("store/lineage-0/*/integrity.json")), processes)
        # A slice would never catch up with such fast steps if each checkpoint made rounds unnecessary.
        paused = max(map(find_last_step, first)) + 5 * SYNC_EVERY
        set_job(tmp_path, (0,), unsaved=(paused, ENDLESS_STEPS))
        wait_until(lambda: all(find_last_step(host) > paused for host in first), processes)
        third = start_slice(tmp_path, 1, 3)
        started = [*started, *third.values()]
        processes += third.values()
        wait_until(lambda: all(has_joined(host) for host in third), processes)
        joined_at = time.monotonic()
        last = max(map(find_last_step, first)) // SYNC_EVERY * SYNC_EVERY + 15 * SYNC_EVERY
        set_job(tmp_path, (0, 1), last, unsaved=(paused, last - 8 * SYNC_EVERY))
        for process in (*first.values(), *third.values()):
            process.join(PATIENCE)
            assert process.exitcode == 0
    finally:
        for process in started:
            process.kill()
            process.join()

    for host, process in first.items():
        lines = host.read_lines()
        assert {line["pid"] for line in lines} == {process.pid}
        assert [line["step"] for line in lines if "step" in line] == list(range(1, last + 1))
        while_away = [line["step"] for line in lines if "step" in line and killed_at < line["time"] < joined_at]
        assert len(while_away) > 2 * SYNC_EVERY
    ours, theirs = rounds_of(first), rounds_of(third)
    joined = {line["joined"] for host in third for line in host.read_lines() if "joined" in line}
    assert len(joined) == 1
    assert {step for _, step in theirs} == set(range(min(joined) + SYNC_EVERY, last + 1, SYNC_EVERY))
    assert {tuple(line["members"]) for (_, step), line in ours.items() if step <= min(joined)} >= {(0, 1), (0,)}
    restored = {line["restored"] for host in third for line in host.read_lines() if "joined" in line}
    assert len(restored) == 1
    assert 0 < min(restored) <= min(joined)
    kept = {int(path.name) for path in tmp_path.glob("store/replicas/lineage-0/*")}
    assert min(kept) > min(joined), "a checkpoint of a later step made the earlier rounds unnecessary"
    assert ours[0, min(joined)]["members"] == [0]
    assert ours[0, last]["members"] == [0, 1]
    assert all(line["dropped"] == 0 for line in (*ours.values(), *theirs.values()))
    for key, line in theirs.items():  # the same outer parameters, of the same shards
        assert (line["base"], line["outer"]) == (ours[key]["base"], ours[key]["outer"])
