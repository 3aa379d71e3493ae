"""The faults of a soak: each strikes a job that runs, lasts for a while, and is over when it says so.

A fault that finds nothing to strike (no process, no second checkpoint) says that, and is not counted.
"""

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

from e2e.soak.job import HANG_SECONDS
from e2e.soak.stage import Stage, send, trainers_of
from trainingjob_api.protocol import Phase
from trainingjob_operator.cli.local.container import Container

type Strike = Callable[[Stage], Awaitable[bool]]
"""Strike, and end what lasts; return whether there was anything to strike."""

SECONDS_UNTIL_TOLD = 1.0
"""After which a host has told what it does."""
LOSSES_BEFORE_FAILURE = 2
"""A saved step is only damaged where so many others are left to go on from."""


async def kill_trainer(stage: Stage) -> bool:
    """Kill the trainer of a host that is in a world, or the standby of one that is not."""
    if container := _pick(stage):
        send(SIGKILL, *trainers_of(container)[:1])
    return container is not None


async def kill_standby(stage: Stage) -> bool:
    """Kill one of the trainers that wait, or still import, beside the one that trains."""
    standbys = [pid for _, container in stage.containers() for pid in trainers_of(container)[1:]]
    if standbys:
        send(SIGKILL, stage.random.choice(standbys))
    return bool(standbys)


async def kill_agent(stage: Stage) -> bool:
    """Kill an agent alone; its trainers are orphans."""
    if container := _pick(stage):
        send(SIGKILL, container.pid)
    return container is not None


async def kill_slice(stage: Stage) -> bool:
    """Kill all processes of a slice."""
    found = stage.containers()
    if found:
        stage.machine.controllers.kill_slice(stage.random.choice(found)[0])
    return bool(found)


async def kill_all(stage: Stage) -> bool:
    """Kill all processes of all slices."""
    found = stage.containers()
    stage.machine.controllers.kill_all()
    return bool(found)


async def cut_power(stage: Stage) -> bool:
    """Let a slice fall silent, with nothing to see, for longer than silence takes; then it is known to be gone."""
    found = stage.containers()
    if not found:
        return False
    number, container = stage.random.choice(found)
    send(SIGSTOP, container.pid, *trainers_of(container))
    await asyncio.sleep(stage.random.uniform(1, 5))
    stage.machine.controllers.kill_slice(number)
    return True


async def pause_trainer(stage: Stage) -> bool:
    """Stop a trainer for less time than a hang takes."""
    return await _pause(stage, trainers_of, HANG_SECONDS / 2)


async def pause_agent(stage: Stage) -> bool:
    """Stop an agent for a while, shorter or longer than silence takes; its trainer goes on."""
    return await _pause(stage, lambda container: [container.pid], 5)


async def hang_trainer(stage: Stage) -> bool:
    """Stop the trainer of a world for good where it trains, and for a moment where it saves: that may take minutes."""
    training = [(number, pids) for number, one in stage.containers() if len(pids := trainers_of(one)) > 1]
    if training:
        number, pids = stage.random.choice(training)
        send(SIGSTOP, pids[0])
        await asyncio.sleep(SECONDS_UNTIL_TOLD)
        if stage.witness.phases.get(number) is not Phase.TRAINING:
            send(SIGCONT, pids[0])
    return bool(training)


async def delete_pod(stage: Stage) -> bool:
    """Delete a pod, as a drain does, or with no time to save."""
    pods = stage.pods()
    if pods:
        stage.machine.controllers.delete(stage.random.choice(pods), stage.random.choice((0.0, 1.0, None)))
    return bool(pods)


async def partition_host(stage: Stage) -> bool:
    """Cut one host off from the operator."""
    pods = stage.pods()
    return bool(pods) and await _partition(stage, {stage.random.choice(pods)["metadata"]["uid"]}, 6)


async def partition_operator(stage: Stage) -> bool:
    """Cut all hosts off from the operator."""
    pods = stage.pods()
    return bool(pods) and await _partition(stage, {pod["metadata"]["uid"] for pod in pods}, 6)


async def restart_operator(stage: Stage) -> bool:
    """Kill the operator between two of its writes, and start another at once or a little later."""
    for operator in tuple(stage.gate.operators):
        await stage.stop_operator(operator)
    await asyncio.sleep(stage.random.choice((0.0, stage.random.uniform(0, 4))))
    if not stage.gate.operators:
        stage.start_operator()
    return True


async def double_operator(stage: Stage) -> bool:
    """Let two operators run at once, neither of which knows of the other; hosts reach now this, now that one."""
    stage.start_operator()
    await asyncio.sleep(stage.random.uniform(0.5, 4))
    if len(stage.gate.operators) > 1:
        await stage.stop_operator(stage.random.choice(stage.gate.operators))
    return True


async def fail_api(stage: Stage) -> bool:
    """Let calls to the API server fail, before they do anything or after."""
    stage.api_fails = True
    await asyncio.sleep(stage.random.uniform(0.5, 3))
    stage.api_fails = False
    return True


async def turn_clock(stage: Stage) -> bool:
    """Set the operator's clock by up to an hour, and back."""
    stage.skew = stage.random.choice((-1, 1)) * stage.random.choice((1, 30, 3600)) * stage.random.random()
    await asyncio.sleep(stage.random.uniform(0.5, 4))
    stage.skew = 0.0
    return True


async def damage_checkpoint(stage: Stage) -> bool:
    """Flip a bit of the newest saved step, cut a file of it short or delete one; then kill what could do without it."""
    saved = sorted((path.parent for path in stage.checkpoints.glob("lineage-*/*/integrity.json")), key=_step_of)
    known = {folder.stat().st_ino for folder in saved if folder.exists()}
    if len(saved) <= LOSSES_BEFORE_FAILURE or known & stage.damaged:
        return False
    files = [path for path in saved[-1].rglob("*") if path.is_file() and path.stat().st_size > 0]
    if not files:
        return False
    stage.damaged.add(saved[-1].stat().st_ino)
    _damage(max(files, key=lambda path: path.stat().st_size), stage)
    return await stage.random.choice((kill_trainer, kill_slice, kill_all))(stage)


async def fail_storage(stage: Stage) -> bool:
    """Let the trainers' writes fail, as on a full disk."""
    pids = [pid for _, container in stage.containers() for pid in trainers_of(container)]
    begun = time.time()
    _limit_files(pids, 1)
    await asyncio.sleep(stage.random.uniform(0.2, 1.5))
    _limit_files(pids, resource.RLIM_INFINITY)
    stage.outages.append((begun, time.time()))
    return bool(pids)


async def suspend(stage: Stage) -> bool:
    """Suspend the job and resume it, before or after its pods are gone."""
    stage.machine.cluster.edit(suspend=True)
    stage.wake()
    await asyncio.sleep(stage.random.uniform(0.2, 4))
    stage.machine.cluster.edit(suspend=False)
    stage.wake()
    return True


async def scale(stage: Stage) -> bool:
    """Allow one slice alone, and then both again."""
    slices = stage.machine.cluster.job["spec"]["slices"]
    stage.machine.cluster.edit(slices={**slices, "max": 1})
    stage.wake()
    await asyncio.sleep(stage.random.uniform(0.2, 3))
    stage.machine.cluster.edit(slices=slices)
    stage.wake()
    return True


FREE: Mapping[str, Strike] = {
    "agent killed": kill_agent,
    "slice killed": kill_slice,
    "all slices killed": kill_all,
    "power cut": cut_power,
    "standby killed": kill_standby,
    "trainer paused": pause_trainer,
    "agent paused": pause_agent,
    "pod deleted": delete_pod,
    "host cut off": partition_host,
    "operator cut off": partition_operator,
    "operator killed": restart_operator,
    "two operators": double_operator,
    "API server fails": fail_api,
    "suspended": suspend,
    "scaled": scale,
}
"""Faults that say nothing about the program: as many as may be."""
COUNTED: Mapping[str, Strike] = {
    "trainer killed": kill_trainer,
    "trainer hangs": hang_trainer,
    "writes fail": fail_storage,
    "checkpoint damaged": damage_checkpoint,
}
"""Faults that are held against the program: after the second in a row the operator pauses, and is right to."""
CLOCK = "clock turned"
"""A fault that the ledger may show: an operator that comes while it lasts counts by the clock that it finds. Only in
jobs that are judged by that clock."""


def _pick(stage: Stage) -> Container | None:  # None: nothing runs
    found = stage.containers()
    return stage.random.choice(found)[1] if found else None


async def _pause(stage: Stage, choose: Callable[[Container], list[int]], longest: float) -> bool:
    container = _pick(stage)
    pids = choose(container)[:1] if container else []
    send(SIGSTOP, *pids)
    await asyncio.sleep(stage.random.uniform(0.1, longest))
    send(SIGCONT, *pids)
    return bool(pids)


async def _partition(stage: Stage, pods: set[str], longest: float) -> bool:
    gate = stage.gate
    way = stage.random.choice((gate.cut, gate.swallowed))
    way |= pods
    gate.change()
    await asyncio.sleep(stage.random.uniform(0.2, longest))
    way -= pods
    gate.change()
    return True


def _limit_files(pids: list[int], size: int) -> None:
    for pid in pids:
        try:
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
        except (ProcessLookupError, PermissionError):  # it ended meanwhile
            continue


def _step_of(folder: Path) -> int:
    return int(folder.name) if folder.name.isdigit() else -1


def _damage(path: Path, stage: Stage) -> None:
    content = path.read_bytes()
    match stage.random.choice(("flip", "cut", "delete")):
        case "flip":
            place = stage.random.randrange(len(content))
            path.write_bytes(
                content[:place] + bytes([content[place] ^ 1 << stage.random.randrange(8)]) + content[place + 1 :]
            )
        case "cut":
            path.write_bytes(content[: stage.random.randrange(len(content))])
        case _:
            path.unlink()
