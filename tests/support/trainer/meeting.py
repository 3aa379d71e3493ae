"""Processes of one world that are threads of one process, for what they agree on without JAX."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from trainingjob_trainer.runtime.process_group import ProcessGroup


class Meeting:
    """The exchange among the processes of a world, for processes that are threads."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=30)
        self.said: dict[tuple[str, int], str] = {}


class ThreadPeers(ProcessGroup):
    """A process of a world that is a thread of this one."""

    def __init__(self, process: int, size: int, meeting: Meeting) -> None:
        super().__init__(process, size)
        self.meeting = meeting

    def barrier(self, name: str, seconds: float) -> None:
        self.meeting.barrier.wait()

    def exchange(self, name: str, text: str, seconds: float) -> tuple[str, ...]:
        assert (name, self.process) not in self.meeting.said, f"{name} was exchanged before: a name serves once"
        self.meeting.said[name, self.process] = text
        self.meeting.barrier.wait()
        return tuple(self.meeting.said[name, process] for process in range(self.num_processes))


def renumber(peers: ProcessGroup, indices: Sequence[int]) -> ProcessGroup:
    """Return a process, seen from which the runtime gives all of its world these indices."""
    peers._indices = tuple(indices)
    return peers


def together[T](size: int, act: Callable[[ProcessGroup], T]) -> list[T]:
    """Return what each process of a world of this size makes of the same act."""
    meeting = Meeting(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda process: act(ThreadPeers(process, size, meeting)), range(size)))
