"""Devices whose state differs from its replicas: the host that is named, and the reason of the failure."""

from tests.support.builders import make_plan
from tests.support.scenes import claim, fail, kind, trained
from trainingjob_api.protocol import FailureReason
from trainingjob_operator.core.decide.decisions import Claim


def test_host_that_reports_its_own_corruption_is_named() -> None:
    scene = fail(trained(), 1, 1, still=0.1, reason=FailureReason.CORRUPTION, message="device 3")
    fail(scene, 0, 0, still=0.5, reason=FailureReason.PEER)

    end = claim(scene).end

    assert kind(scene.decide()) == (Claim, (0, 1), "Corruption", True)
    assert end
    assert (end.cause.slice, end.cause.host, end.cause.node, end.is_single_node) == (1, 1, "node-1-1", True)


def test_no_host_is_named_if_two_may_be_corrupt() -> None:
    reported = {"reason": FailureReason.CORRUPTION, "is_host_known": False, "message": "host 0 or host 1"}
    scene = fail(fail(trained(), 1, 1, **reported), 0, 0, **reported)

    end = claim(scene).end
    scene.step()

    assert end
    assert (end.cause.slice, end.cause.host, end.cause.node, end.is_single_node) == (None, None, "", False)
    assert end.cause.message == "host 0 or host 1"
    assert scene.status.nodes == ()


def test_corruption_counts_against_the_node() -> None:
    scene = fail(trained(), 1, 1, reason=FailureReason.CORRUPTION)
    scene.step()

    assert [(one.node, one.faults) for one in scene.status.nodes] == [("node-1-1", 1)]


def test_a_broken_device_found_twice_at_the_same_step_is_no_proof_against_the_program() -> None:
    scene = trained(plan=make_plan(elastic={"nodeExclusion": "report"}))
    for _ in range(3):
        assert isinstance(fail(scene, 1, 1, reason=FailureReason.CORRUPTION, step=12).step(), Claim)
        scene.train(step=11, restored=10, committed=11, failure=None)
        scene.step()
