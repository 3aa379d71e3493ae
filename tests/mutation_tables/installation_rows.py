"""Mutations of the reach of an installation: its namespaces and its connections."""

from tests.mutation_tables.mutation import SHELL, Mutation

UNREADABLE = "tests/shell/test_unreadable_namespaces.py"

INSTALLATION_MUTATIONS = (
    Mutation(
        "an operator syncs although it may list no watched namespace",
        f"{SHELL}/reflector.py",
        "if not failed and (not self._namespaces or unreadable != {*self._namespaces}):",
        "if not failed:",
        (f"{UNREADABLE}::test_an_operator_that_may_list_no_namespace_is_not_synced",),
    ),
    Mutation(
        "one forbidden namespace keeps all others from being listed",
        f"{SHELL}/reflector.py",
        "                if not namespace:\n                    raise\n",
        "                raise\n",
        (f"{UNREADABLE}::test_jobs_of_other_namespaces_are_known_and_those_of_an_unreadable_one_wait",),
    ),
    Mutation(
        "a forbidden list of the whole cluster is no failure",
        f"{SHELL}/reflector.py",
        "                if not namespace:\n                    raise\n",
        "",
        (f"{UNREADABLE}::test_a_forbidden_list_of_the_whole_cluster_is_a_failure",),
    ),
    Mutation(
        "pods are listed although the jobs of their namespace are unknown",
        f"{SHELL}/reflector.py",
        "            if self.unreadable.is_forbidden(namespace):\n                continue\n",
        "",
        (f"{UNREADABLE}::test_a_namespace_is_readable_after_a_whole_round_of_lists",),
    ),
    Mutation(
        "jobs of an unreadable namespace are reconciled without their pods",
        f"{SHELL}/cluster.py",
        "        if reason := self._feed.unreadable.reason(namespace):\n",
        '        if reason := "":\n',
        (f"{UNREADABLE}::test_jobs_of_other_namespaces_are_known_and_those_of_an_unreadable_one_wait",),
    ),
    Mutation(
        "a namespace counts as readable although a list failed",
        f"{SHELL}/reflector.py",
        "self.unreadable.end_round(is_complete=not failed)",
        "self.unreadable.end_round(is_complete=True)",
        (f"{UNREADABLE}::test_a_namespace_stays_unreadable_while_another_list_fails",),
    ),
)
