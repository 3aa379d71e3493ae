"""The pods of the operator and its webhook survive the failure of a node: they are spread, and replaced soon."""

from typing import Any

import pytest

OPERATOR, WEBHOOK = "trainingjob-operator", "trainingjob-operator-webhook"
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"


def find_pod(chart: Any, values: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the spec of the pods of a Deployment."""
    spec: dict[str, Any] = chart.find("Deployment", values, name)["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("name", [OPERATOR, WEBHOOK])
def test_two_pods_share_a_node_only_if_no_other_admits_them(chart, name) -> None:
    """Tainted nodes do not count, so that cordoned and failed nodes block no pod. A single node admits both pods."""
    node, zone = find_pod(chart, {}, name)["topologySpreadConstraints"]

    assert (node["topologyKey"], node["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "DoNotSchedule")
    assert (zone["topologyKey"], zone["whenUnsatisfiable"]) == ("topology.kubernetes.io/zone", "ScheduleAnyway")
    selector = chart.find("Deployment", {}, name)["spec"]["selector"]
    for constraint in node, zone:
        assert (constraint["maxSkew"], constraint["nodeTaintsPolicy"]) == (1, "Honor")
        assert "minDomains" not in constraint
        assert constraint["labelSelector"] == selector


@pytest.mark.parametrize("name", [OPERATOR, WEBHOOK])
def test_each_rollout_spreads_its_pods(chart, name) -> None:
    """Pods of the former revision do not count."""
    constraints = find_pod(chart, {}, name)["topologySpreadConstraints"]

    assert [one["matchLabelKeys"] for one in constraints] == [["pod-template-hash"]] * 2


@pytest.mark.parametrize("name", [OPERATOR, WEBHOOK])
@pytest.mark.parametrize(("values", "seconds"), [({}, 30), ({"nodeFailureTolerationSeconds": 0}, 0)])
def test_pods_of_a_failed_node_are_replaced_after_a_short_time(chart, name, values, seconds) -> None:
    """Without these tolerations, Kubernetes adds its own of 300 s."""
    tolerations = find_pod(chart, values, name)["tolerations"]

    assert tolerations == [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in (NOT_READY, UNREACHABLE)
    ]


def test_tolerations_of_the_user_come_last_and_replace_those_of_the_same_key(chart) -> None:
    """The first toleration of a taint counts, so that one for all taints keeps no pod on a failed node."""
    everything, own = {"operator": "Exists"}, {"key": UNREACHABLE, "operator": "Exists"}
    first, *others = find_pod(chart, {"tolerations": [everything, own]}, WEBHOOK)["tolerations"]

    assert (first["key"], first["tolerationSeconds"]) == (NOT_READY, 30)
    assert others == [everything, own]
