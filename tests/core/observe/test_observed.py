"""The pod that represents a host."""

from tests.support.builders import pod_manifest
from tests.support.scenes import Scene


def test_replacement_pod_represents_the_host() -> None:
    scene = Scene().place(0).delete_pod(0, 0)
    scene.more_pods.append(pod_manifest(scene.plan, 0, 0, uid="successor"))

    host = scene.see().slices[0].hosts[0]

    assert host.pod
    assert host.pod.uid == "successor"
