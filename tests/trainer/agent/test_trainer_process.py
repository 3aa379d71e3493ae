"""A child process as its agent sees it, with a real process that plays the trainer."""

import asyncio
import gc
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from trainingjob_agent import trainer_process as child_module
from trainingjob_agent.state import ChildDiagnosed, ChildExited, EventReceived
from trainingjob_agent.supervisor import log_stacks
from trainingjob_agent.trainer_process import Child
from trainingjob_agent.trainer_protocol import StartWorld
from trainingjob_api.protocol import FailureReason, Phase, ProcessState
from trainingjob_api.world import Member, RunConfig, World

PATIENCE_SECONDS = 60.0


class Followed:
    """A child with its output so far."""

    def __init__(self, command: Sequence[str], config: RunConfig, output: io.BytesIO | None = None) -> None:
        self.told: list[EventReceived | ChildExited] = []
        self.output = output or io.BytesIO()
        self._config = config
        self._change = asyncio.Event()
        self.child = Child(1, command, self._tell, self.output)
        self.task = asyncio.create_task(self.child.forward_output())

    def _tell(self, news: EventReceived | ChildExited) -> None:
        self.told.append(news)
        self._change.set()

    async def until(self, holds: Callable[[EventReceived | ChildExited], bool]) -> EventReceived | ChildExited:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for news in self.told:
                    if holds(news):
                        return news
                self._change.clear()
                await self._change.wait()

    async def start(self) -> None:
        await self.until(lambda news: isinstance(news, EventReceived) and news.event.ready)
        member = Member(process=0, slice=0, host=0, pod="pod", pod_uid="uid", address="127.0.0.1")
        world = World(generation=1, job_uid="job", coordinator="127.0.0.1:1", members=(member,))
        self.child.start(StartWorld(config=self._config, world=world, process=0))

    async def until_phase(self, phase: Phase) -> None:
        await self.until(lambda news: isinstance(news, EventReceived) and news.event.phase is phase)

    async def until_end(self) -> ChildExited:
        end = await self.until(lambda news: isinstance(news, ChildExited))
        await self.task
        assert isinstance(end, ChildExited)
        return end


async def test_child_trains_and_drains_on_request(fake_trainer, run_config) -> None:
    followed = Followed(fake_trainer(g1="train"), run_config)

    await followed.start()
    await followed.until_phase(Phase.TRAINING)
    followed.child.request_leave()
    end = await followed.until_end()

    phases = [news.event.phase for news in followed.told if isinstance(news, EventReceived) and news.event.phase]
    assert phases == [Phase.CONNECTING, Phase.TRAINING, Phase.LEFT]
    assert end == ChildExited(1, code=0, log="generation 1 process 0 plays train\n")
    assert followed.told[-1] is end
    assert followed.output.getvalue() == b"[world 1] generation 1 process 0 plays train\n"


async def test_child_starts_without_the_world_variables_of_the_pod(run_config, monkeypatch) -> None:
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "2")
    monkeypatch.setenv("JAX_ENABLE_RECOVERABILITY", "1")
    monkeypatch.setenv("TPU_TOPOLOGY", "2x2x2")
    names = "MEGASCALE_NUM_SLICES", "JAX_ENABLE_RECOVERABILITY", "TPU_TOPOLOGY"
    program = f"import os; print([name for name in {names} if name in os.environ])"
    followed = Followed((sys.executable, "-c", program), run_config)

    await followed.until_end()

    assert followed.output.getvalue() == b"[standby] ['TPU_TOPOLOGY']\n"


async def test_a_crash_ends_with_the_last_lines_of_the_log(fake_trainer, run_config) -> None:
    followed = Followed(fake_trainer(g1="crash"), run_config)

    await followed.start()
    end = await followed.until_end()

    assert (end.code, end.signal, end.failure) == (1, "", None)
    assert end.log.endswith("RuntimeError: the matrix is singular\n")


async def test_failure_is_reported_with_the_exit(fake_trainer, run_config) -> None:
    followed = Followed(fake_trainer(g1="fail"), run_config)

    await followed.start()
    end = await followed.until_end()

    assert end.code == 3
    assert end.failure is not None
    assert (end.failure.reason, end.failure.message) == (FailureReason.DATA, "no text")


async def test_child_that_reported_a_failure_and_does_not_exit_is_killed(fake_trainer, run_config, monkeypatch) -> None:
    monkeypatch.setattr(child_module, "FAILURE_EXIT_SECONDS", 0.05)
    followed = Followed(fake_trainer(g1="fail and hang"), run_config)

    await followed.start()
    end = await followed.until_end()

    assert end.signal == "SIGKILL"
    assert end.failure is not None


async def test_killing_a_child_ends_all_that_it_started(fake_trainer, run_config) -> None:
    followed = Followed(fake_trainer(g1="orphans"), run_config)

    await followed.start()
    await followed.until_phase(Phase.TRAINING)
    group = followed.child.pid
    followed.child.kill()
    end = await followed.until_end()

    assert end.signal == "SIGKILL"
    assert [pid for pid in alive() if group_of(pid) == group] == []


@pytest.fixture
def patient(monkeypatch) -> None:
    monkeypatch.setattr(child_module, "MAX_STACKS_SECONDS", PATIENCE_SECONDS)


async def examine(followed: Followed) -> ChildDiagnosed:
    found = await followed.child.collect_diagnostics()
    assert found
    return found


@pytest.mark.thorough
async def test_child_dumps_its_stacks_and_continues(fake_trainer, run_config, patient) -> None:
    followed = Followed(fake_trainer(g1="train"), run_config)

    await followed.start()
    await followed.until_phase(Phase.TRAINING)
    first, second = await examine(followed), await examine(followed)
    followed.child.request_leave()
    end = await followed.until_end()

    for found in (first, second):
        assert (found.child, found.state) == (1, ProcessState.SLEEPING)
        assert found.cores < 0.1
        header, *_, outermost = found.stacks.splitlines()
        assert re.fullmatch(r"Current thread 0x\w+ \(most .*\):", header)
        assert re.fullmatch(r'  File ".*fake_trainer.py", line \d+ in .*', outermost)
    assert end.code == 0


DUMP = 'Current thread 0x1 (most recent call first):\n  File "a.py", line 1 in run'
SLOW_DUMP = f"""
import signal, time
def dump(*_):
    time.sleep({child_module.CPU_SAMPLE_SECONDS + 0.2})
    print({DUMP!r}, flush=True)
signal.signal(signal.SIGUSR1, dump)
print("ready", flush=True)
while True:
    signal.pause()
"""


async def test_stacks_of_a_child_on_a_busy_host_are_awaited_also_by_two_requests(run_config, patient) -> None:
    followed = Followed([sys.executable, "-c", SLOW_DUMP], run_config)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while b"ready" not in followed.output.getvalue():  # noqa: ASYNC110  # the log has no event
            await asyncio.sleep(0.01)

    first = asyncio.create_task(examine(followed))
    await asyncio.sleep(child_module.CPU_SAMPLE_SECONDS / 2)
    second = asyncio.create_task(examine(followed))
    found = [(await request).stacks for request in (first, second)]
    followed.child.kill()
    await followed.until_end()

    assert found == [DUMP, DUMP]


async def test_stacks_of_an_inspection_are_lines_of_the_log(fake_trainer, run_config, patient, caplog) -> None:
    caplog.set_level("INFO")
    followed = Followed(fake_trainer(g1="train"), run_config)

    await followed.start()
    await followed.until_phase(Phase.TRAINING)
    await log_stacks("one", followed.child)
    followed.child.kill()
    await followed.until_end()
    await log_stacks("two", followed.child)

    (message,) = [text for text in caplog.messages if text.startswith("stacks id=")]
    first, state, empty, header, *_, last = message.splitlines()
    assert (first, empty, last) == ("stacks id=one", "", "end of stacks id=one")
    assert state.startswith("sleeping, 0.0")
    assert header.startswith("Current thread 0x")


async def test_computing_child_is_distinguished_from_a_waiting_one(fake_trainer, run_config, patient) -> None:
    followed = Followed(fake_trainer(g1="compute"), run_config)

    await followed.start()
    await followed.until_phase(Phase.TRAINING)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (found := await examine(followed)).cores < 0.1:  # others may have all cores for a moment
            pass

    assert "fake_trainer.py" in found.stacks


async def test_a_stopped_child_is_seen_to_be_stopped(fake_trainer, run_config) -> None:
    followed = Followed(fake_trainer(g1="train"), run_config)

    await followed.start()
    await followed.until_phase(Phase.TRAINING)
    os.kill(followed.child.pid, signal.SIGSTOP)
    found = await examine(followed)
    followed.child.kill()
    end = await followed.until_end()

    assert found == ChildDiagnosed(1, ProcessState.STOPPED, 0.0)
    assert end.signal == "SIGKILL"


async def test_a_child_that_has_ended_shows_nothing(fake_trainer, run_config) -> None:
    followed = Followed(fake_trainer(), run_config)

    followed.child.kill()
    await followed.until_end()

    assert await followed.child.collect_diagnostics() is None


async def test_child_that_exits_during_diagnostics_has_none(fake_trainer, run_config) -> None:
    followed = Followed(fake_trainer(), run_config)

    look = asyncio.create_task(followed.child.collect_diagnostics())
    await asyncio.sleep(0)
    followed.child.kill()
    await followed.until_end()

    assert await look is None


def alive() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and not is_zombie(entry)]


def is_zombie(entry: Path) -> bool:
    with suppress(OSError):
        return entry.joinpath("stat").read_text().rpartition(") ")[2].startswith("Z")
    return True


def group_of(pid: int) -> int:
    with suppress(ProcessLookupError):
        return os.getpgid(pid)
    return 0


async def test_a_child_that_ends_leaves_nothing_behind(run_config) -> None:
    followed = Followed(["/bin/sh", "-c", "sleep 600 & echo $!"], run_config)

    end = await followed.until_end()
    with suppress(TimeoutError):
        async with asyncio.timeout(20):
            while int(end.log) in alive():  # noqa: ASYNC110  # who is killed takes a moment to go
                await asyncio.sleep(0.01)

    assert int(end.log) not in alive()


async def test_a_killed_standby_ends_too(fake_trainer, run_config) -> None:
    followed = Followed(fake_trainer(), run_config)

    followed.child.kill()
    end = await followed.until_end()
    followed.child.kill()
    followed.child.request_leave()

    assert (end.code, end.signal) == (None, "SIGKILL")


async def test_malformed_event_is_ignored_and_logged(fake_trainer, run_config, caplog) -> None:
    followed = Followed(fake_trainer(g1="chatter"), run_config)

    await followed.start()
    await followed.until_phase(Phase.TRAINING)
    followed.child.kill()
    await followed.until_end()

    assert "ignored a malformed event" in caplog.text


async def test_a_very_long_line_is_passed_on_in_pieces(run_config) -> None:
    long = 3 * child_module.CHUNK
    followed = Followed(["/bin/sh", "-c", f"head -c {long} /dev/zero | tr '\\0' x; printf 'the end'"], run_config)

    await followed.until_end()

    written = followed.output.getvalue()
    assert written.replace(b"[standby] ", b"").replace(b"\n", b"") == long * b"x" + b"the end"
    assert max(map(len, written.splitlines())) <= 2 * child_module.CHUNK + len("[standby] ")


class FullDisk(io.BytesIO):
    def write(self, *_) -> int:
        raise OSError("no space left on device")


async def test_unread_log_blocks_nothing(run_config) -> None:
    much = 3 * child_module.CHUNK
    command = ["/bin/sh", "-c", f"head -c {much} /dev/zero | tr '\\0' '\\n'; printf 'the end'"]
    followed = Followed(command, run_config, FullDisk())

    end = await followed.until_end()

    assert (end.code, end.log.strip()) == (0, "the end")


async def test_child_is_ended_when_its_watcher_stops(fake_trainer, run_config) -> None:
    followed = Followed(fake_trainer(), run_config)

    await followed.start()
    followed.task.cancel()
    await asyncio.wait({followed.task})

    assert followed.child.pid not in alive()
    assert not any(isinstance(news, ChildExited) for news in followed.told)


async def test_a_mistake_of_ours_is_not_swallowed(fake_trainer, run_config) -> None:
    followed = Followed(fake_trainer(), run_config)
    followed.child._on_message = None

    with pytest.raises(TypeError):
        await asyncio.wait_for(kill_and_wait(followed), PATIENCE_SECONDS)


async def kill_and_wait(followed: Followed) -> None:
    followed.child.kill()
    await followed.task


async def test_pipes_that_a_stranger_holds_delay_the_end_only_a_little(run_config, monkeypatch) -> None:
    monkeypatch.setattr(child_module, "DRAIN_SECONDS", 0.05)
    followed = Followed(["/bin/sh", "-c", "setsid sleep 600 & echo $!"], run_config)

    end = await followed.until_end()
    os.kill(int(end.log), 9)

    assert end.code == 0


async def test_a_program_that_does_not_exist_is_an_error(run_config) -> None:
    before = count_open_files()

    with pytest.raises(FileNotFoundError):
        Followed(["/no/such/program"], run_config)

    assert count_open_files() == before


def count_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_following_that_is_cancelled_at_once_leaves_nothing_behind(fake_trainer, run_config) -> None:
    for steps in range(4):  # before it begins, and at each of its first waits
        followed = Followed(fake_trainer(), run_config)
        for _ in range(steps):
            await asyncio.sleep(0)
        followed.task.cancel()
        await asyncio.wait({followed.task})
        followed.child.close()

        assert followed.child.pid not in alive()
    gc.collect()  # what was left open would be told now
