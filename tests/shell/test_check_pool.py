"""Checks run outside the event loop, in fair turns and within bounds; after a process ended, the next check works."""

import asyncio
import io
import json
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainingjob_operator.core.catalog import BUILTIN
from trainingjob_operator.core.planner import strategy
from trainingjob_operator.core.validation.validate import validate_job
from trainingjob_operator.shell import check_pool, check_worker
from trainingjob_operator.shell.admission import Admission
from trainingjob_operator.shell.admission_review import NotAReviewError
from trainingjob_operator.shell.check_pool import (
    CheckBusyError,
    CheckCpuLimitError,
    CheckFailedError,
    CheckPool,
    FairQueue,
    WorkerProcess,
)
from trainingjob_operator.shell.check_worker import LENGTH, Request, Result, encode_message, run, serve

EXAMPLES = Path(__file__).parents[2] / "crds/examples"
DEMO = yaml.safe_load((EXAMPLES / "demo.yaml").read_text())["spec"]
COSTLY = DEMO | {
    "slices": {"accelerator": "tpu-v5p", "topology": "16x16x24", "min": 1, "max": 2},
    "model": DEMO["model"] | {"embedDim": 16384, "numLayers": 60, "numHeads": 128, "numKvHeads": 64, "headDim": 128},
    "training": DEMO["training"] | {"globalBatchSize": 1048576, "sequenceLength": 131072},
    "parallelism": {"strategy": "auto"},
}
HANGING = (sys.executable, "-c", "import time; time.sleep(1000)")
DYING = (sys.executable, "-c", "raise SystemExit(7)")
CPU_SECONDS = 60.0
PATIENCE_SECONDS = 60.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure no machine: the bounds of time are set by the tests that are about them."""
    for name in ("REVIEW_SECONDS", "REVIEW_WAIT_SECONDS"):
        monkeypatch.setattr(check_pool, name, PATIENCE_SECONDS)


@pytest.fixture
async def worker():
    worker = WorkerProcess(BUILTIN)
    yield worker
    await worker.close()


def review(spec: Any, uid: str = "u-1", user: str = "alice") -> bytes:
    request = {
        "uid": uid,
        "kind": {"group": "trainingjob.dev", "version": "v1alpha1", "kind": "TrainingJob"},
        "operation": "CREATE",
        "namespace": "research",
        "userInfo": {"username": user},
        "object": {"metadata": {"name": "demo"}, "spec": spec},
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


async def hold(turns: FairQueue, done: list[str], peer: str, user: str = "") -> None:
    async with turns.acquire(peer, user):
        done.append(f"{peer}{user}")
        await asyncio.sleep(0)


FAIR = {
    "one peer, in order": (["a1", "a2", "a3"], ["a1", "a2", "a3"]),
    "a flood of one peer and one of another": (["a1", "a1", "a1", "a1", "b1"], ["a1", "a1", "b1", "a1", "a1"]),
    "users of one peer": (["a1", "a1", "a1", "a2"], ["a1", "a1", "a2", "a1"]),
    "many names of one peer against another": (
        ["a1", "a2", "a3", "a4", "b1", "b1"],
        ["a1", "a2", "b1", "a3", "b1", "a4"],
    ),
}


@pytest.mark.parametrize(("requested", "want"), FAIR.values(), ids=FAIR.keys())
async def test_peers_take_turns(requested: list[str], want: list[str]) -> None:
    turns, done = FairQueue(), list[str]()

    await asyncio.gather(*(hold(turns, done, peer, user) for peer, user in requested))

    assert done == want


async def test_cancelled_caller_releases_its_place() -> None:
    turns, done = FairQueue(), list[str]()
    async with turns.acquire("a"):
        tasks = [asyncio.create_task(hold(turns, done, name)) for name in "bcd"]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
    tasks[1].cancel()  # its turn came in this very moment
    await asyncio.gather(*tasks, return_exceptions=True)

    assert done == ["d"]
    await hold(turns, done, "e")
    assert done == ["d", "e"]


async def test_a_peer_has_only_so_many_that_wait() -> None:
    turns = FairQueue(max_waiting=2)
    async with turns.acquire("a"):
        waiting = [asyncio.create_task(hold(turns, [], "a", user)) for user in "12"]
        await asyncio.sleep(0)
        with pytest.raises(CheckBusyError, match="2 requests of a are already queued"):
            await hold(turns, [], "a", "3")
        waiting.append(asyncio.create_task(hold(turns, [], "b")))
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)


async def test_a_turn_that_does_not_come_is_busy() -> None:
    turns = FairQueue()
    async with turns.acquire("a"):
        with pytest.raises(CheckBusyError, match="other requests used all of its 0 s"):
            async with turns.acquire("b", seconds=0):
                pass
    await hold(turns, done := [], "c")
    assert done == ["c"]


@pytest.mark.thorough
async def test_the_verdict_is_that_of_the_rules() -> None:
    async with CheckPool(BUILTIN) as checks:
        assert await checks.check("research", "demo", DEMO) == validate_job("demo", DEMO)
        assert await checks.check("research", "demo", {"model": 1}) == validate_job("demo", {"model": 1})
        assert (await checks.evaluate_review(review(DEMO), "p")).answer["response"]["allowed"] is True
        with pytest.raises(NotAReviewError, match="not JSON"):
            await checks.evaluate_review(b"{", "p")


async def test_slow_review_blocks_neither_the_loop_nor_other_checks() -> None:
    async with CheckPool(BUILTIN) as checks:
        await checks._reviews.close()
        checks._reviews = WorkerProcess(BUILTIN, HANGING)
        held = asyncio.create_task(checks.evaluate_review(review(COSTLY), "p"))
        for _ in range(100):  # each is a heartbeat of the loop
            await asyncio.sleep(0)
        assert (await checks.check("research", "demo", DEMO)).problems == ()
        assert not held.done()

    assert held.done(), "the end of the operator is the end of the review"


@pytest.mark.thorough
async def test_worker_for_jobs_ends_when_idle_and_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_pool, "IDLE_SECONDS", 0.0)
    async with CheckPool(BUILTIN) as pool:
        first = await pool.check("research", "demo", DEMO)
        process = pool._jobs._process
        assert process
        await process.wait()

        assert await pool.check("research", "demo", DEMO) == first


async def test_a_check_that_uses_too_much_cpu_ends_its_process(worker: WorkerProcess) -> None:
    with pytest.raises(CheckCpuLimitError, match=r"needs more than 0\.001 s of CPU time"):
        await worker.run_task(Request(("", "demo", COSTLY), 0.001))

    assert (await worker.run_task(Request(("", "demo", DEMO), CPU_SECONDS))).problems == ()


async def test_a_process_that_is_killed_is_replaced(worker: WorkerProcess) -> None:
    process = await worker.start()
    os.kill(process.pid, signal.SIGKILL)

    with pytest.raises(CheckFailedError, match="exited with code -9"):
        await worker.run_task(Request(("", "demo", DEMO), CPU_SECONDS))
    assert (await worker.run_task(Request(("", "demo", DEMO), CPU_SECONDS))).problems == ()
    assert (await worker.start()).pid != process.pid


async def test_process_that_cannot_start_is_reported(worker: WorkerProcess) -> None:
    worker._command = DYING

    # asyncio says 255 if another part of this process has collected the status
    with pytest.raises(CheckFailedError, match=r"exited with code (7|255)"):
        await worker.run_task(Request(("", "demo", DEMO), CPU_SECONDS))


async def test_a_check_that_breaks_brings_its_traceback(worker: WorkerProcess) -> None:
    with pytest.raises(CheckFailedError, match="ValueError: a task has two or three arguments"):
        await worker.run_task(Request((), CPU_SECONDS))


async def test_the_operator_ends_its_processes() -> None:
    async with CheckPool(BUILTIN) as checks:
        await checks.warm_up()
        await checks.check("research", "demo", DEMO)
        pids = [(await each.start()).pid for each in (checks._reviews, checks._jobs)]

    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_process_ends_with_the_operator_whatever_ended_that() -> None:
    requests, answers = (
        io.BytesIO(encode_message(()) + encode_message(Request(("", "demo", DEMO), CPU_SECONDS))),
        io.BytesIO(),
    )

    serve(requests, answers)  # returns at the end of its input

    head, body = answers.getvalue()[: LENGTH.size], answers.getvalue()[LENGTH.size :]
    assert LENGTH.unpack(head) == (len(body),)
    assert pickle.loads(body) == run(Request(("", "demo", DEMO), CPU_SECONDS), BUILTIN)  # noqa: S301


def test_a_process_that_grew_is_worn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_worker, "MAX_RESIDENT_KIB", 1)

    assert run(Request(("", "demo", DEMO), CPU_SECONDS), BUILTIN).needs_replacement


async def test_the_memory_of_the_operator_does_not_replace_its_processes(worker: WorkerProcess) -> None:
    ballast = b"x" * (2 * check_worker.MAX_RESIDENT_KIB * 1024)

    pids = set()
    for _ in range(2):
        await worker.run_task(Request(("", "demo", DEMO), CPU_SECONDS))
        pids.add((await worker.start()).pid)

    assert ballast
    assert len(pids) == 1


async def test_a_worn_process_is_replaced(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    async def worn(request: Request) -> Result:
        await worker.start()
        return Result(request.arguments, needs_replacement=True)

    monkeypatch.setattr(worker, "_exchange", worn)

    assert await worker.run_task(Request((1, 2), CPU_SECONDS)) == (1, 2)
    assert worker._process is None


async def may_use(user: Any, namespace: str, name: str) -> bool:
    del user, namespace, name
    return True


ANSWERS = {
    "busy": (CheckBusyError("other requests used all of its 2 s"), 503, "Try again"),
    "too costly": (CheckCpuLimitError("its check needs more than 2 s of CPU time"), 422, "more than 2 s of CPU time"),
    "broken": (CheckFailedError("Traceback"), 500, "Its log has the error"),
}


@pytest.mark.parametrize(("error", "code", "words"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_without_a_verdict_the_review_is_answered_all_the_same(error: Exception, code: int, words: str) -> None:
    async def fail(body: bytes, peer: str) -> Any:
        raise error

    response = (await Admission(fail, may_use).review(review(DEMO), "10.0.0.1"))["response"]

    assert (response["uid"], response["allowed"], response["status"]["code"]) == ("u-1", False, code)
    assert words in response["status"]["message"]


async def test_review_that_takes_too_long_is_rejected_temporarily(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_pool, "REVIEW_SECONDS", 0.05)
    async with CheckPool(BUILTIN, HANGING) as checks:
        answer = await Admission(checks.evaluate_review, may_use).review(review(COSTLY), "10.0.0.1")
        assert checks._reviews._process, "it may yet end, and then it is warm"

    assert answer["response"]["status"]["code"] == 503


async def test_a_process_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_pool, "MAX_REVIEW_SECONDS", 0.05)
    async with CheckPool(BUILTIN, HANGING) as checks:
        with pytest.raises(CheckBusyError, match=r"did not end within 0\.05 s"):
            await checks.evaluate_review(review(COSTLY), "10.0.0.1")
        assert checks._reviews._process is None


@pytest.mark.thorough
def test_no_spec_makes_the_search_for_a_mesh_long(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    real = strategy._step_seconds
    monkeypatch.setattr(strategy, "_step_seconds", lambda *arguments: measured.append(1) or real(*arguments))

    validate_job("demo", COSTLY)

    a_search = strategy.MAX_FACTORIZATIONS * len(strategy.SLICE_AXES) * len(strategy.REMAT_POLICIES)
    assert 100 < len(measured) <= 4 * a_search, "the mesh is searched for, and what to suggest where none fits"
