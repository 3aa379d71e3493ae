"""The faults of a soak. Each fault affects a running job, lasts for a while, and has ended when its function returns.

A fault that finds no target (no process, no second checkpoint) returns False and is not counted.
"""

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

from e2e.soak.harness import JobHarness, list_trainers, send_signal
from e2e.soak.job import HANG_SECONDS
from trainingjob_agent.checkpoint_layout import parse_step_name
from trainingjob_operator.cli.local.container import Container

type FaultInjection = Callable[[JobHarness], Awaitable[bool]]
"""Injects a fault and ends it; returns whether there was a target."""

MIN_INTACT_CHECKPOINTS = 2
"""Number of undamaged saved steps that must remain before another one may be damaged."""


async def kill_trainer(harness: JobHarness) -> bool:
    """Kill the trainer of a host that is in a world, or the standby trainer of a host that is not."""
    if container := _pick_container(harness):
        send_signal(SIGKILL, *list_trainers(container)[:1])
    return container is not None


async def kill_standby(harness: JobHarness) -> bool:
    """Kill a standby trainer, waiting or still importing, beside an active one."""
    standbys = [pid for _, container in harness.containers() for pid in list_trainers(container)[1:]]
    if standbys:
        send_signal(SIGKILL, harness.random.choice(standbys))
    return bool(standbys)


async def kill_agent(harness: JobHarness) -> bool:
    """Kill only an agent, which orphans its trainers."""
    if container := _pick_container(harness):
        send_signal(SIGKILL, container.pid)
    return container is not None


async def kill_slice(harness: JobHarness) -> bool:
    """Kill all processes of a slice."""
    found = harness.containers()
    if found:
        harness.machine.controllers.kill_slice(harness.random.choice(found)[0])
    return bool(found)


async def kill_all(harness: JobHarness) -> bool:
    """Kill all processes of all slices."""
    found = harness.containers()
    harness.machine.controllers.kill_all()
    return bool(found)


async def cut_power(harness: JobHarness) -> bool:
    """Stop a slice's processes so that its heartbeats stop, then kill them, as in a power failure.

    The stop is shorter or longer than `heartbeatTimeout`.
    """
    found = harness.containers()
    if not found:
        return False
    number, container = harness.random.choice(found)
    send_signal(SIGSTOP, container.pid, *list_trainers(container))
    await asyncio.sleep(harness.random.uniform(1, 5))
    harness.machine.controllers.kill_slice(number)
    return True


async def pause_trainer(harness: JobHarness) -> bool:
    """Stop a trainer for less than `progressTimeout`, then continue it."""
    return await _pause(harness, list_trainers, HANG_SECONDS / 2)


async def pause_agent(harness: JobHarness) -> bool:
    """Stop an agent for less or more than `heartbeatTimeout`, then continue it; its trainer runs on."""
    return await _pause(harness, lambda container: [container.pid], 5)


async def hang_trainer(harness: JobHarness) -> bool:
    """Stop a world's trainer permanently, in any phase."""
    active = [pids[0] for _, container in harness.containers() if len(pids := list_trainers(container)) > 1]
    if active:
        send_signal(SIGSTOP, harness.random.choice(active))
    return bool(active)


async def delete_pod(harness: JobHarness) -> bool:
    """Delete a pod with its own grace period, as a drain does, or with too little time to save."""
    pods = harness.pods()
    if pods:
        harness.machine.controllers.delete(harness.random.choice(pods), harness.random.choice((0.0, 1.0, None)))
    return bool(pods)


async def partition_host(harness: JobHarness) -> bool:
    """Cut the connection between one host and the operator."""
    pods = harness.pods()
    return bool(pods) and await _partition(harness, {harness.random.choice(pods)["metadata"]["uid"]}, 6)


async def partition_operator(harness: JobHarness) -> bool:
    """Cut the connections between all hosts and the operator."""
    pods = harness.pods()
    return bool(pods) and await _partition(harness, {pod["metadata"]["uid"] for pod in pods}, 6)


async def restart_operator(harness: JobHarness) -> bool:
    """Kill the operator, possibly between two of its writes, and start another one at once or later."""
    for operator in tuple(harness.report_proxy.operators):
        await harness.stop_operator(operator)
    await asyncio.sleep(harness.random.choice((0.0, harness.random.uniform(0, 4))))
    if not harness.report_proxy.operators:
        harness.start_operator()
    return True


async def run_two_operators(harness: JobHarness) -> bool:
    """Run two operators that do not know of each other; each report reaches one of them at random."""
    harness.start_operator()
    await asyncio.sleep(harness.random.uniform(0.5, 4))
    if len(harness.report_proxy.operators) > 1:
        await harness.stop_operator(harness.random.choice(harness.report_proxy.operators))
    return True


async def fail_api(harness: JobHarness) -> bool:
    """Make calls to the API server fail, before or after they take effect."""
    harness.api_fails = True
    await asyncio.sleep(harness.random.uniform(0.5, 3))
    harness.api_fails = False
    return True


async def skew_clock(harness: JobHarness) -> bool:
    """Set the operator's clock forward or back by up to an hour, then restore it."""
    harness.skew = harness.random.choice((-1, 1)) * harness.random.choice((1, 30, 3600)) * harness.random.random()
    await asyncio.sleep(harness.random.uniform(0.5, 4))
    harness.skew = 0.0
    return True


async def damage_checkpoint(harness: JobHarness) -> bool:
    """Damage the newest saved step, then kill processes so that the job has to restore.

    The damage is a flipped bit, a truncated file or a deleted file.
    """
    saved = sorted((path.parent for path in harness.checkpoints.glob("lineage-*/*/integrity.json")), key=_step_of)
    known = {folder.stat().st_ino for folder in saved if folder.exists()}
    if len(saved) <= MIN_INTACT_CHECKPOINTS or known & harness.damaged:
        return False
    files = [path for path in saved[-1].rglob("*") if path.is_file() and path.stat().st_size > 0]
    if not files:
        return False
    harness.damaged.add(saved[-1].stat().st_ino)
    _damage(max(files, key=lambda path: path.stat().st_size), harness)
    return await harness.random.choice((kill_trainer, kill_slice, kill_all))(harness)


async def fail_storage(harness: JobHarness) -> bool:
    """Make the trainers' writes fail, as on a full disk."""
    pids = [pid for _, container in harness.containers() for pid in list_trainers(container)]
    start = time.time()
    _limit_files(pids, 1)
    await asyncio.sleep(harness.random.uniform(0.2, 1.5))
    _limit_files(pids, resource.RLIM_INFINITY)
    harness.outages.append((start, time.time()))
    return bool(pids)


async def suspend(harness: JobHarness) -> bool:
    """Suspend the job and resume it, before or after its pods have ended."""
    harness.machine.cluster.edit(suspend=True)
    harness.wake()
    await asyncio.sleep(harness.random.uniform(0.2, 4))
    harness.machine.cluster.edit(suspend=False)
    harness.wake()
    return True


async def scale(harness: JobHarness) -> bool:
    """Limit the job to one slice, then allow both again."""
    slices = harness.machine.cluster.job["spec"]["slices"]
    harness.machine.cluster.edit(slices={**slices, "max": 1})
    harness.wake()
    await asyncio.sleep(harness.random.uniform(0.2, 3))
    harness.machine.cluster.edit(slices=slices)
    harness.wake()
    return True


UNCOUNTED_FAULTS: Mapping[str, FaultInjection] = {
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
    "two operators": run_two_operators,
    "API server fails": fail_api,
    "suspended": suspend,
    "scaled": scale,
}
"""Faults that do not count as failures of the program; their number is unlimited."""
COUNTED_FAULTS: Mapping[str, FaultInjection] = {
    "trainer killed": kill_trainer,
    "trainer hangs": hang_trainer,
    "writes fail": fail_storage,
    "checkpoint damaged": damage_checkpoint,
}
"""Faults that count as failures of the program. After the second in a row the operator correctly backs off."""
CLOCK_FAULT = "clock turned"
"""Fault that can distort the goodput ledger: an operator started during it uses the wrong clock.

It affects only jobs whose ledger is judged by that clock.
"""


def _pick_container(harness: JobHarness) -> Container | None:  # None: no container is running
    found = harness.containers()
    return harness.random.choice(found)[1] if found else None


async def _pause(harness: JobHarness, choose: Callable[[Container], list[int]], longest: float) -> bool:
    container = _pick_container(harness)
    pids = choose(container)[:1] if container else []
    send_signal(SIGSTOP, *pids)
    await asyncio.sleep(harness.random.uniform(0.1, longest))
    send_signal(SIGCONT, *pids)
    return bool(pids)


async def _partition(harness: JobHarness, pods: set[str], longest: float) -> bool:
    report_proxy = harness.report_proxy
    way = harness.random.choice((report_proxy.partitioned, report_proxy.blackholed))
    way |= pods
    report_proxy.notify_change()
    await asyncio.sleep(harness.random.uniform(0.2, longest))
    way -= pods
    report_proxy.notify_change()
    return True


def _limit_files(pids: list[int], size: int) -> None:
    for pid in pids:
        try:
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
        except (ProcessLookupError, PermissionError):  # it has ended
            continue


def _step_of(folder: Path) -> int:
    name = parse_step_name(folder.name)
    return name.step if name else -1


def _damage(path: Path, harness: JobHarness) -> None:
    content = path.read_bytes()
    match harness.random.choice(("flip", "cut", "delete")):
        case "flip":
            place = harness.random.randrange(len(content))
            path.write_bytes(
                content[:place] + bytes([content[place] ^ 1 << harness.random.randrange(8)]) + content[place + 1 :]
            )
        case "cut":
            path.write_bytes(content[: harness.random.randrange(len(content))])
        case _:
            path.unlink()
