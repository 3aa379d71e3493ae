"""What is observed of a job: the pod that represents a host, and the work of looking at many slices."""

import sys
from typing import Any

from tests.support.builders import child_job_manifest, make_plan, pod_manifest
from tests.support.scenes import Scene


def test_replacement_pod_represents_the_host() -> None:
    scene = Scene().place(0).delete_pod(0, 0)
    scene.more_pods.append(pod_manifest(scene.plan, 0, 0, uid="successor"))

    host = scene.see().slices[0].hosts[0]

    assert host.pod
    assert host.pod.uid == "successor"


def count_calls(num_slices: int) -> int:
    """Return the number of calls of Python functions in one observation of a job with slices of one host."""
    scene = Scene(make_plan(num_slices, num_slices, hosts=1))
    for number in range(num_slices):
        scene.place(number)
        scene.jobs.append(child_job_manifest(scene.plan, number))
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        scene.see()
    finally:
        sys.setprofile(None)
    return calls


def test_work_of_an_observation_grows_with_the_number_of_slices() -> None:
    few, many = count_calls(32), count_calls(128)

    assert many < 5 * few
