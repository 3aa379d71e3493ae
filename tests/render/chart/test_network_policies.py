"""Who may connect to the pods of the operator and its webhook, and where they may connect to."""

import json
from typing import Any

OPERATOR, WEBHOOK = "trainingjob-operator", "trainingjob-operator-webhook"


def ports(rules: list[dict[str, Any]]) -> list[list[Any]]:
    return [[port["port"] for port in rule["ports"]] for rule in rules]


def test_each_pod_accepts_only_its_own_ports(chart) -> None:
    for name in (OPERATOR, WEBHOOK):
        policy = chart.find("NetworkPolicy", {}, name)["spec"]
        deployment = chart.find("Deployment", {}, name)["spec"]
        (container,) = deployment["template"]["spec"]["containers"]

        assert policy["podSelector"] == deployment["selector"]
        assert policy["policyTypes"] == ["Ingress"]
        assert ports(policy["ingress"]) == [[one["name"]] for one in container["ports"]]


def test_agents_reach_the_rendezvous_and_the_api_server_the_webhook(chart) -> None:
    rendezvous, metrics = chart.find("NetworkPolicy", {}, OPERATOR)["spec"]["ingress"]
    webhook, _ = chart.find("NetworkPolicy", {}, WEBHOOK)["spec"]["ingress"]

    agents = {"matchExpressions": [{"key": "trainingjob.dev/job-uid", "operator": "Exists"}]}
    assert rendezvous["from"] == [{"namespaceSelector": {}, "podSelector": agents}]
    assert "from" not in webhook, "the API server is not a pod"
    assert "from" not in metrics


def test_values_narrow_the_sources_and_destinations(chart, variants) -> None:
    values = variants["everything"]
    chosen = values["networkPolicy"]
    for name in (OPERATOR, WEBHOOK):
        policy = chart.find("NetworkPolicy", values, name)["spec"]
        main, metrics = policy["ingress"]
        dns, api_server, *others = policy["egress"]

        assert metrics["from"] == chosen["metricsFrom"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert ports([dns, api_server]) == [[53, 53], [6443]]
        assert others == chosen["egress"]
        if name == WEBHOOK:
            assert main["from"] == chosen["webhookFrom"]
        else:
            assert "from" not in main, "agents of a profile may be on their nodes' network"
            without_profiles = chart.find("NetworkPolicy", values | {"podProfiles": {}}, name)["spec"]
            main, *_ = without_profiles["ingress"]
            (expression,) = main["from"][0]["namespaceSelector"]["matchExpressions"]
            assert expression["values"] == values["watch"]["namespaces"]


def test_dns_pods_behind_another_port_are_reached(chart) -> None:
    """Networks that apply policies after the translation of the Service see the port of the DNS pods."""
    rules = {"restrictEgress": True, "dnsPorts": [53, 5353], "jobs": {"restrictEgress": True}}
    wanted = [{"protocol": protocol, "port": port} for port in (53, 5353) for protocol in ("UDP", "TCP")]
    values = {"networkPolicy": rules}
    (container,) = chart.find("Deployment", values)["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}

    for name in (OPERATOR, WEBHOOK):
        assert chart.find("NetworkPolicy", values, name)["spec"]["egress"][0]["ports"] == wanted
    assert json.loads(variables["TRAININGJOB_JOB_NETWORK"])["egress"][0]["ports"] == wanted


def test_the_operator_may_write_policies_only_if_it_does(chart, variants) -> None:
    def granted(values: dict[str, Any]) -> list[list[str]]:
        role = chart.find("ClusterRole", values, f"{OPERATOR}-jobs")
        return [rule["verbs"] for rule in role["rules"] if rule["resources"] == ["networkpolicies"]]

    assert granted({}) == [["create", "patch"]]
    assert granted(variants["little"]) == []
    assert not any(one["kind"] == "NetworkPolicy" for one in chart.objects(variants["little"]))
