"""Which of its pods stands for a host."""

from tests.support.builders import pod_manifest
from tests.support.scenes import Scene


def test_a_pod_that_was_replaced_stands_back_behind_its_successor() -> None:
    scene = Scene().place(0).delete_pod(0, 0)
    scene.more_pods.append(pod_manifest(scene.plan, 0, 0, uid="successor"))

    host = scene.see().slices[0].hosts[0]

    assert host.pod
    assert host.pod.uid == "successor"
