"""What a local run's controllers make of JobSets: real processes, with shells in the place of agents."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from trainingjob_operator.cli.local.container import Container, start_container
from trainingjob_operator.cli.local.controllers import Controllers
from trainingjob_operator.cli.local.objects import Objects
from trainingjob_operator.core.manifests import Manifest

JOB_UID = "job-uid"


class Run:
    def __init__(self, folder: Path, away_seconds: float = 0.05) -> None:
        self.objects = Objects()
        self.controllers = Controllers(
            JOB_UID, self.objects, self._start, notify=self._notice, host_return_seconds=away_seconds
        )
        self.most_running = 0
        self.tokens: list[str] = []
        self.refusals: list[OSError] = []
        self._folder = folder
        self._news = asyncio.Event()

    async def _start(self, pod: Manifest, token: str) -> Container:
        if self.refusals:
            raise self.refusals.pop()
        self.tokens.append(token)
        scratch = self._folder / pod["metadata"]["name"]
        scratch.mkdir()
        return await start_container(
            pod, token, config_maps={}, volumes={}, scratch=scratch, memory=scratch / "memory", log=self._folder / "log"
        )

    def _notice(self) -> None:
        self.most_running = max(self.most_running, len(self.pods()))
        self._news.set()

    async def until(self, condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(20):
            while not (result := condition()):
                self._news.clear()
                await self._news.wait()
        return result

    def pods(self, phase: str = "Running") -> list[Manifest]:
        return [pod for pod in self.objects.of_kind("Pod") if pod["status"]["phase"] == phase]

    def hosts(self, phase: str = "Running") -> list[str]:
        return sorted(pod["metadata"]["name"].rsplit("-", 1)[0] for pod in self.pods(phase))

    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods()}


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    run = Run(tmp_path)
    async with run.controllers.running():
        yield run


def make_jobset(script: str, *, slices: int = 1, hosts: int = 1, name: str = "demo", **spec: Any) -> Manifest:
    container = {"name": "trainer", "command": ["sh", "-c", script]}
    labels = {"trainingjob.dev/slice-offset": "2"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    job = {"completions": hosts, "template": template}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": "local",
            "ownerReferences": [{"kind": "TrainingJob", "name": "demo", "uid": JOB_UID, "controller": True}],
        },
        "spec": {
            "replicatedJobs": [{"name": "slice", "replicas": slices, "template": {"metadata": {}, "spec": job}}],
            **spec,
        },
    }


def process_of(run: Run, pod: Manifest) -> int:
    return run.controllers._containers[pod["metadata"]["uid"]].pid


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_each_host_of_each_slice_has_a_pod_with_its_index(run: Run) -> None:
    run.controllers.put(make_jobset("sleep 60", slices=2, hosts=2))

    await run.until(lambda: len(run.pods()) == 4)

    assert run.hosts() == ["demo-slice-0-0", "demo-slice-0-1", "demo-slice-1-0", "demo-slice-1-1"]
    last = max(run.pods(), key=lambda pod: pod["metadata"]["name"])
    assert last["metadata"]["labels"] == {
        "trainingjob.dev/slice-offset": "2",
        "jobset.sigs.k8s.io/jobset-name": "demo",
        "jobset.sigs.k8s.io/replicatedjob-name": "slice",
        "jobset.sigs.k8s.io/job-index": "1",
        "batch.kubernetes.io/job-name": "demo-slice-1",
        "batch.kubernetes.io/job-completion-index": "1",
    }


async def test_a_token_names_its_pod_and_no_other(run: Run) -> None:
    run.controllers.put(make_jobset("sleep 60", hosts=2))
    await run.until(lambda: len(run.pods()) == 2)

    found = [run.controllers.find_pod(token) for token in run.tokens]

    assert [pod["metadata"]["uid"] for pod in found if pod] == [pod["metadata"]["uid"] for pod in run.pods()]
    assert run.controllers.find_pod("made up") is None


async def test_a_suspended_jobset_has_no_pods(run: Run) -> None:
    run.controllers.put(make_jobset("sleep 60", name="a-suspended", suspend=True))
    run.controllers.put(make_jobset("sleep 60", name="active"))

    await run.until(run.pods)

    assert run.hosts() == ["active-slice-0-0"]


async def test_completion_is_final_and_preserves_its_message(run: Run) -> None:
    run.controllers.put(make_jobset('echo done > "$TRAININGJOB_TERMINATION_LOG"', name="ends"))
    run.controllers.put(make_jobset("exit 3", name="fails"))

    # The other host dies, is replaced and dies again: time enough for a wrong replacement of the first.
    await run.until(lambda: len(run.pods("Failed")) > 2)

    (ended,) = [pod for pod in run.objects.of_kind("Pod") if pod["metadata"]["name"].startswith("ends")]
    terminated = ended["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["status"]["phase"] == "Succeeded"
    assert (terminated["exitCode"], terminated["message"]) == (0, "done\n")


async def test_a_container_that_cannot_be_started_now_is_tried_again(run: Run) -> None:
    run.refusals = [OSError("out of processes")]
    run.controllers.put(make_jobset("sleep 60"))

    await run.until(run.pods)

    (failed,) = run.pods("Failed")
    assert failed["status"]["message"] == "its process exited with code 128: out of processes"


async def test_a_killed_slice_leaves_failed_pods_and_comes_back(run: Run) -> None:
    run.controllers.put(make_jobset("sleep 60", slices=2, hosts=2))
    await run.until(lambda: len(run.pods()) == 4)
    before = run.uids()

    run.controllers.kill_slice(3)
    await run.until(lambda: len(run.pods("Failed")) == 2 and len(run.pods()) == 4)

    assert run.hosts("Failed") == ["demo-slice-1-0", "demo-slice-1-1"]
    assert len(run.uids() & before) == 2
    terminated = run.pods("Failed")[0]["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["signal"]) == (137, 9)


async def test_a_dead_host_waits_before_it_comes_back(tmp_path: Path) -> None:
    run = Run(tmp_path, away_seconds=3600)
    async with run.controllers.running():
        run.controllers.put(make_jobset("exit 3", name="a-dead"))
        await run.until(lambda: run.pods("Failed"))
        run.controllers.delete(run.objects.of_kind("Job")[0])  # as the operator does with a slice that is gone
        run.controllers.put(make_jobset("sleep 60", name="other"))
        await run.until(run.pods)

        assert run.hosts() == ["other-slice-0-0"]


async def test_deleting_a_failed_pod_forgets_it(run: Run) -> None:
    run.controllers.put(make_jobset("exit 3"))
    await run.until(lambda: run.pods("Failed"))

    gone = run.pods("Failed")[0]
    run.controllers.delete(gone)

    assert run.objects.find(gone["metadata"]["uid"]) is None


async def test_deleting_a_pod_ends_its_process_and_replaces_it(run: Run) -> None:
    run.controllers.put(make_jobset("sleep 60"))
    (pod,) = await run.until(run.pods)
    process = process_of(run, pod)

    run.controllers.delete(pod)
    await run.until(lambda: run.uids() and pod["metadata"]["uid"] not in run.uids())

    assert not is_running(process)


async def test_a_process_that_does_not_listen_is_killed_after_its_grace(run: Run) -> None:
    run.controllers.put(make_jobset("trap '' TERM; while true; do sleep 0.05; done"))
    (pod,) = await run.until(run.pods)

    run.controllers.delete(pod, grace_seconds=0.1)

    await run.until(lambda: run.uids() and pod["metadata"]["uid"] not in run.uids())


async def test_the_grace_of_a_process_is_that_of_its_pod(run: Run, tmp_path: Path) -> None:
    deaf = tmp_path / "deaf"
    os.mkfifo(deaf)
    jobset = make_jobset(f"trap '' TERM; echo > {deaf}; while true; do sleep 0.05; done")
    template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    template["spec"]["terminationGracePeriodSeconds"] = 0
    run.controllers.put(jobset)
    (pod,) = await run.until(run.pods)
    await asyncio.to_thread(deaf.read_text)

    run.controllers.delete(pod)

    await run.until(lambda: run.uids() and pod["metadata"]["uid"] not in run.uids())


async def test_deleting_a_jobset_ends_all_that_it_owns(run: Run) -> None:
    jobset = make_jobset("sleep 60", slices=2)
    run.controllers.put(jobset)
    await run.until(lambda: len(run.pods()) == 2)
    processes = [process_of(run, pod) for pod in run.pods()]

    run.controllers.delete(run.objects.of_kind("JobSet")[0])
    await run.until(lambda: not list(run.objects))

    assert not any(is_running(process) for process in processes)


async def test_deleted_job_is_recreated_after_its_pods_are_deleted(run: Run) -> None:
    run.controllers.put(make_jobset("trap 'sleep 0.2; exit 1' TERM; while true; do sleep 0.02; done"))
    await run.until(run.pods)
    (job,) = run.objects.of_kind("Job")
    before = run.uids()

    run.controllers.delete(job)
    await run.until(lambda: run.uids() and not run.uids() & before)

    assert [pod["metadata"]["uid"] for pod in run.objects.of_kind("Pod")] == [*run.uids()]
    assert run.objects.of_kind("Job")[0]["metadata"]["uid"] != job["metadata"]["uid"]
    assert run.most_running == 1


async def test_nothing_survives_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path)
    async with run.controllers.running():
        run.controllers.put(make_jobset("sleep 60", slices=3))
        await run.until(lambda: len(run.pods()) == 3)
        processes = [process_of(run, pod) for pod in run.pods()]

    assert not any(is_running(process) for process in processes)
