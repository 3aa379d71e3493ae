"""The rights that the chart gives: to the operator, to its webhook, and to people."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from e2e.api_audit import ALLOWED_VERBS

PAGE = Path(__file__).parents[3] / "docs/threat-model.md"
ROW = re.compile(r"^\| `([\w-]+)` \| ([\w ]+) \| ([^`|]+) \| ([\w, ]+) \| (to \S.+) \|$", re.MULTILINE)
APPLIED = ("configmaps", "networkpolicies")
"""Resources that the operator only applies: of an object that does not exist, this needs the right to create it."""

type Right = tuple[str, str, str]
"""ServiceAccount, scope, and resource with its group and name."""


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

    of_users = [("authorization.k8s.io", "subjectaccessreviews", ("create",))]
    of_scrapers = [("authentication.k8s.io", "tokenreviews", ("create",))] if variant == "everything" else []
    assert webhook == ([] if variant == "little" else of_users + of_scrapers)
    operator = [rule for rule in granted if rule[2] == "subjectaccessreviews" and "webhook" not in rule[0]]
    assert bool(operator) == bool(of_scrapers)


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


def bound_rights(manifests: list[dict[str, Any]]) -> Iterator[tuple[Right, set[str]]]:
    """Yield the rights of all ServiceAccounts, with their verbs."""
    roles = {(one["kind"], one["metadata"]["name"]): one for one in manifests if one["kind"].endswith("Role")}
    for binding in (one for one in manifests if one["kind"].endswith("RoleBinding")):
        reference = binding["roleRef"]
        scope = "own namespace" if reference["kind"] == "Role" else "cluster"
        if reference["name"].endswith("-jobs"):
            scope = "watched namespaces"
        for rule in roles[reference["kind"], reference["name"]]["rules"]:
            for group in rule.get("apiGroups", ()):  # none: nonResourceURLs
                for resource in rule["resources"]:
                    name = f"{resource}.{group}" if group else resource
                    for each in rule.get("resourceNames", [""]):
                        for subject in binding["subjects"]:
                            yield (subject["name"], scope, f"{name}: {each}" if each else name), set(rule["verbs"])


def documented_rights() -> dict[Right, set[str]]:
    return {
        (account, scope, resource): set(verbs.split(", "))
        for account, scope, resource, verbs, _ in ROW.findall(PAGE.read_text())
    }


def test_each_right_is_documented_with_its_reason(chart) -> None:
    secure = {"metrics": {"tls": {"enabled": True}, "authentication": {"enabled": True}}}
    assert dict(bound_rights(chart.objects(secure))) == documented_rights()

    of_scrapers = documented_rights().keys() - dict(bound_rights(chart.objects({}))).keys()
    assert {(account, resource.partition(".")[0]) for account, _, resource in of_scrapers} == {
        ("trainingjob-operator", "subjectaccessreviews"),
        ("trainingjob-operator-webhook", "tokenreviews"),
    }


def test_values_only_narrow_the_documented_rights(chart, variants, variant) -> None:
    names = {
        "trainer": "trainingjob-operator",
        "given": "trainingjob-operator",
        "checker": "trainingjob-operator-webhook",
    }
    documented = documented_rights()

    for (account, scope, resource), verbs in bound_rights(chart.objects(variants[variant])):
        assert verbs <= documented[names.get(account, account), scope, resource]


def test_each_right_is_one_that_the_operator_uses(chart) -> None:
    """The journeys compare the same verbs with the requests of the audit log."""
    for (account, _, resource), verbs in bound_rights(chart.objects({})):
        if account.endswith("-test"):  # an account of `helm test`
            continue
        plural = re.split(r"[.:]", resource)[0]
        used = {*ALLOWED_VERBS[plural], *(("create",) if plural in APPLIED else ())}

        assert verbs <= used, resource
