"""The pod that represents a host, and the warnings about a slice."""

import pytest

from tests.support.builders import jobset_name, make_plan, pod_manifest
from tests.support.scenes import Scene


def test_replacement_pod_represents_the_host() -> None:
    scene = Scene().place(0).delete_pod(0, 0)
    scene.more_pods.append(pod_manifest(scene.plan, 0, 0, uid="successor"))

    host = scene.see().slices[0].hosts[0]

    assert host.pod
    assert host.pod.uid == "successor"


BASE = jobset_name(make_plan(2, 12), 0)
WARNED: dict[str, list[int]] = {
    BASE: list(range(2)),
    f"{BASE}-slice-1": [1],
    f"{BASE}-slice-1-0-abcde": [1],
    f"{BASE}-x3": [3],
    f"{BASE}-x3-slice-0": [3],
    f"{BASE}-x3-slice-0-1-abcde": [3],
    f"{BASE}-x11-slice-0": [11],
    f"{BASE}-prep-abcde": [],
}


@pytest.mark.parametrize(("name", "want"), WARNED.items(), ids=WARNED.keys())
def test_a_warning_concerns_the_slices_of_its_object(name: str, want: list[int]) -> None:
    scene = Scene(plan=make_plan(2, 12)).place(0, 1)
    scene.warnings = [{"involvedObject": {"name": name}, "reason": "FailedCreate", "message": "exceeded quota"}]

    assert [slice_.number for slice_ in scene.see().slices if slice_.warning] == want
