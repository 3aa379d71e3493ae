"""Trainer processes, driven as an agent drives them: a standby, one world on its standard input, events on a pipe."""

import os
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.trainer.forked import Forked
from tests.support.trainer.tiny import SECRET
from trainingjob_agent.trainer_protocol import AgentEvent, Command, StartWorld
from trainingjob_api.protocol import Damage, Failure, Phase
from trainingjob_api.world import RunConfig, World

PATIENCE = 120.0


class Trainer:
    """A trainer process and its output."""

    def __init__(self) -> None:
        self.process = Forked(dict(os.environ))
        self.world: list[Trainer] = [self]
        self.events: list[AgentEvent] = []
        self.log = ""
        self._news: queue.Queue[AgentEvent | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_events(self) -> None:
        with self.process.events as events:
            for line in events:
                self._news.put(AgentEvent.model_validate_json(line))
        self._news.put(None)

    def _read_log(self) -> None:
        with self.process.stdout as output:
            self.log = ""
            for line in output:
                self.log += line.decode(errors="replace")

    def wait(self, wanted: Callable[[AgentEvent], Any]) -> AgentEvent:
        """Return the next event that is wanted; every event before it is kept too."""
        while True:
            event = self._news.get(timeout=PATIENCE)
            assert event is not None, f"the trainer ended first: {self.events[-3:]}{self.tell_logs()}"
            self.events.append(event)
            if wanted(event):
                return event

    def tell_logs(self) -> str:
        """Return the logs of all trainers of this world: one's end may be another's fault."""
        logs = (
            f"\n--- process {process}, exit {one.process.poll()}\n{one.log}" for process, one in enumerate(self.world)
        )
        return "".join(logs)

    def write(self, message: StartWorld | Command) -> None:
        self.process.stdin.write(message.model_dump_json().encode() + b"\n")

    def wait_for_step(self, step: int) -> None:
        self.wait(lambda event: event.progress and event.progress.step >= step)

    def wait_for_end(self) -> int:
        """Return the exit code, all events read."""
        while (event := self._news.get(timeout=PATIENCE)) is not None:
            self.events.append(event)
        code = self.process.wait(timeout=PATIENCE)
        for reader in self._readers:
            reader.join(timeout=PATIENCE)
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        for reader in self._readers:
            reader.join(timeout=PATIENCE)

    @property
    def title(self) -> str:
        """What `ps` and `top` call it."""
        return Path(f"/proc/{self.process.pid}/comm").read_text().strip()

    @property
    def num_giving_way(self) -> int:
        """How many of its threads run after its others."""
        threads = [int(path.name) for path in Path(f"/proc/{self.process.pid}/task").iterdir()]
        own = os.getpriority(os.PRIO_PROCESS, self.process.pid)
        return sum(os.getpriority(os.PRIO_PROCESS, thread) > own for thread in threads)

    @property
    def phases(self) -> list[Phase]:
        return [event.phase for event in self.events if event.phase]

    @property
    def losses(self) -> dict[int, float]:
        return {p.step: p.loss for e in self.events if (p := e.progress) and p.loss is not None}

    @property
    def committed(self) -> list[int]:
        return [event.committed for event in self.events if event.committed is not None]

    @property
    def restored(self) -> int | None:
        return next((event.restored for event in self.events if event.restored is not None), None)

    @property
    def tier(self) -> str | None:
        return next((event.tier for event in self.events if event.restored), None)

    @property
    def damaged(self) -> list[Damage]:
        return [event.damaged for event in self.events if event.damaged]

    @property
    def failure(self) -> Failure | None:
        return next((event.failure for event in self.events if event.failure), None)


class Crew:
    """Trainer processes of one test. Standbys are started ahead, as an agent does, because importing takes seconds."""

    def __init__(self) -> None:
        self._all: list[Trainer] = []
        self.standbys: list[Trainer] = []

    def prepare(self, count: int) -> None:
        while len(self.standbys) < count:
            trainer = Trainer()
            self._all.append(trainer)
            self.standbys.append(trainer)

    def start(
        self, config: RunConfig, world: World, compile_cache: Path | None = None, memory: Path | None = None
    ) -> list[Trainer]:
        """Send a world to as many trainers as it has members; below `memory` each pod has a folder for snapshots.

        In a hot standby world they wait.
        """
        count = len(world.members)
        self.prepare(count)
        trainers, self.standbys = self.standbys[:count], self.standbys[count:]
        for trainer in trainers:
            trainer.world = trainers
            trainer.wait(lambda event: event.ready)
        self.hand_over(config, world, trainers, compile_cache, memory, waits=bool(world.shadow))
        return trainers

    def hand_over(
        self,
        config: RunConfig,
        world: World,
        trainers: Sequence[Trainer],
        compile_cache: Path | None = None,
        memory: Path | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """Hand a world to trainers that wait for it."""
        for process, trainer in enumerate(trainers):
            folder = memory / world.members[process].pod if memory else None
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
            start = StartWorld(
                config=config,
                world=world,
                process=process,
                compile_cache=str(compile_cache or ""),
                program_secret=SECRET,
                snapshots=str(folder or ""),
                proven=bool(world.shadow),
                waits=waits,
            )
            trainer.write(start)

    def close(self) -> None:
        for trainer in self._all:
            trainer.close()
