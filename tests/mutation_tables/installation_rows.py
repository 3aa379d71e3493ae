"""Mutations of the reach of an installation: its namespaces and its connections."""

from tests.mutation_tables.mutation import SHELL, Mutation

CHART = "tests/render/chart"
ELSEWHERE = "tests/shell/test_webhook_namespaces.py"
TEMPLATES = "charts/trainingjob/templates"
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
        "        if reason := self._reflector.unreadable.reason(namespace):\n",
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
    Mutation(
        "a new job in an unwatched namespace is accepted",
        f"{SHELL}/review_evaluation.py",
        "    if namespaces and namespace not in namespaces:\n",
        "    if False:\n",
        (ELSEWHERE,),
    ),
    Mutation(
        "edits of a job whose namespace is no longer watched are rejected",
        f"{SHELL}/review_evaluation.py",
        '    if operation == "CREATE":\n        problems',
        "    if True:\n        problems",
        (ELSEWHERE,),
    ),
    Mutation(
        "the webhook's process does not know the watched namespaces",
        f"{SHELL}/webhook_server.py",
        "namespaces=settings.namespaces",
        "namespaces=()",
        ("tests/shell/test_webhook_server.py::test_a_new_job_outside_of_the_watched_namespaces_is_rejected",),
    ),
    Mutation(
        "a proxy is used although NO_PROXY has the network of the API server",
        f"{SHELL}/proxy.py",
        "        return address is not None and address in network\n",
        "        return False\n",
        ("tests/shell/test_proxy.py",),
    ),
    Mutation(
        "watches ignore the proxy of the environment",
        f"{SHELL}/watcher.py",
        "        proxy=configuration.proxy,\n",
        "",
        ("tests/shell/test_proxy.py::test_requests_and_watches_take_the_same_way",),
    ),
    Mutation(
        "requests find another proxy than watches",
        f"{SHELL}/api.py",
        "        configuration.proxy = configuration.proxy or find_proxy(configuration.host)\n",
        "",
        ("tests/shell/test_proxy.py::test_requests_and_watches_take_the_same_way",),
    ),
    Mutation(
        "the chart sends requests to the API server to a proxy",
        f"{TEMPLATES}/_pod.tpl",
        'has "HTTP_PROXY" $names',
        "false",
        (f"{CHART}/test_proxy.py",),
    ),
    Mutation(
        "two servers of the webhook may have the same port",
        f"{TEMPLATES}/_validate.tpl",
        "(concat $webhook $tls)",
        "$webhook",
        (f"{CHART}/test_values.py::test_invalid_value_is_rejected_with_its_path",),
    ),
    Mutation(
        "two servers of the operator may have the same port",
        f"{TEMPLATES}/_validate.tpl",
        "(concat $operator $tls)",
        "$operator",
        (f"{CHART}/test_values.py::test_invalid_value_is_rejected_with_its_path",),
    ),
    Mutation(
        "jobs reach DNS only at port 53",
        f"{TEMPLATES}/_helpers.tpl",
        '(include "trainingjob.dnsPorts" $ | fromYamlArray)',
        '(list (dict "protocol" "UDP" "port" 53))',
        (f"{CHART}/test_network_policies.py::test_dns_pods_behind_another_port_are_reached",),
    ),
)
