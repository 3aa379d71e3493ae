"""The rights that the chart gives: to the operator, and to people."""

from collections.abc import Iterator
from typing import Any


def rules(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, str, str, tuple[str, ...], tuple[str, ...]]]:
    """Yield (role, group, resource, verbs, names) of all roles that are bound to the operator."""
    for one in manifests:
        if one["kind"] in ("Role", "ClusterRole") and one["metadata"]["name"].startswith("trainingjob-operator"):
            for rule in one["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        names = tuple(rule.get("resourceNames", ()))
                        yield one["metadata"]["name"], group, resource, tuple(rule["verbs"]), names


def test_no_right_is_wider_than_its_use(chart, variants, variant) -> None:
    granted = list(rules(chart.objects(variants[variant])))

    assert granted
    for role, group, resource, verbs, names in granted:
        assert "*" not in (group, resource, *verbs), role
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(verbs), role
        assert not resource.endswith("/exec"), role
        assert "finalizers" not in resource, role
        if resource in ("secrets", "validatingwebhookconfigurations"):
            assert names, f"{role} may touch any {resource}"
            assert not {"list", "watch", "create"} & set(verbs), role


def test_secrets_are_out_of_reach_where_others_make_the_certificates(chart, variants) -> None:
    granted = {resource: verbs for _, _, resource, verbs, _ in rules(chart.objects(variants["everything"]))}

    assert "secrets" not in granted
    assert granted["validatingwebhookconfigurations"] == ("get",), "only to see since when jobs are checked"


def test_the_webhook_may_only_ask_for_the_rights_of_users(chart, variants, variant) -> None:
    granted = list(rules(chart.objects(variants[variant])))
    webhook = [rule[1:4] for rule in granted if rule[0] == "trainingjob-operator-webhook"]

    wanted = [("authorization.k8s.io", "subjectaccessreviews", ("create",))]
    assert webhook == ([] if variant == "little" else wanted)
    assert [rule for rule in granted if rule[2] == "subjectaccessreviews" and "webhook" not in rule[0]] == []


def test_without_the_webhook_its_configuration_is_out_of_reach(chart, variants) -> None:
    granted = {resource for _, _, resource, _, _ in rules(chart.objects(variants["little"]))}

    assert "validatingwebhookconfigurations" not in granted


def test_rights_over_jobs_end_at_the_watched_namespaces(chart, variants) -> None:
    def bindings(values: dict[str, Any]) -> list[tuple[str, str]]:
        return [
            (one["kind"], one["metadata"].get("namespace", ""))
            for one in chart.objects(values)
            if one.get("roleRef", {}).get("name") == "trainingjob-operator-jobs"
        ]

    assert bindings({}) == [("ClusterRoleBinding", "")]
    assert sorted(bindings(variants["everything"])) == [("RoleBinding", "prod"), ("RoleBinding", "research")]


def test_editing_jobs_is_not_given_to_every_editor_unasked(chart) -> None:
    def aggregated(values: dict[str, Any]) -> set[str]:
        roles = [one for one in chart.objects(values) if one["kind"] == "ClusterRole"]
        return {key for one in roles for key in one["metadata"]["labels"] if "aggregate-to" in key}

    view, edit = (f"rbac.authorization.k8s.io/aggregate-to-{role}" for role in ("view", "edit"))
    assert aggregated({}) == {view}
    assert aggregated({"roles": {"aggregateToEdit": True}}) == {view, edit}
    assert aggregated({"roles": {"aggregateToView": False}}) == set()
