"""Mutations of the chart."""

from tests.mutation_tables.mutation import Mutation

TEMPLATES = "charts/trainingjob/templates"

CHART_MUTATIONS = (
    Mutation(
        "an upgrade without new values renders on",
        f"{TEMPLATES}/_validate.tpl",
        "{{- with $missing -}}\n",
        "{{- with list -}}\n",
        (
            "tests/render/chart/test_upgrades.py::test_an_upgrade_with_reuse_values_names_the_missing_values_and_the_flag",
        ),
    ),
    Mutation(
        "a list that is set to null breaks a template",
        f"{TEMPLATES}/tests/installation.yaml",
        "(.Values.watch.namespaces | default list)",
        ".Values.watch.namespaces",
        ("tests/render/chart/test_upgrades.py::test_a_missing_value_whose_default_is_empty_counts_as_empty",),
    ),
    Mutation(
        "pods stay on a failed node for five minutes",
        f"{TEMPLATES}/_pod.tpl",
        'list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable"',
        'list "node.kubernetes.io/not-ready"',
        ("tests/render/chart/test_node_failures.py",),
    ),
)
