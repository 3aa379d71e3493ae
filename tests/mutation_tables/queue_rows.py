"""Mutations of the warnings about queues of Kueue."""

from tests.mutation_tables.mutation import CORE, SHELL, Mutation

STATE = "tests/core/validation/test_queue_state.py"
LIMITS = "tests/core/validation/test_queue_limits.py"

QUEUE_MUTATIONS = (
    Mutation(
        "a stopped LocalQueue has no warning",
        f"{CORE}/validation/queue_state.py",
        '    local = tuple(_describe_activity("LocalQueue", queue.local_queue))\n',
        "    local: tuple[str, ...] = ()\n",
        (STATE,),
    ),
    Mutation(
        "an inactive queue has no warning",
        f"{CORE}/validation/queue_state.py",
        "    if reason and reason not in _DERIVED_REASONS:\n",
        "    if False:\n",
        (STATE,),
    ),
    Mutation(
        "each admission check counts as MultiKueue",
        f"{CORE}/validation/queue_state.py",
        '        if get_text(check, "spec", "controllerName") == MULTIKUEUE:\n',
        "        if check:\n",
        (STATE,),
    ),
    Mutation(
        "a queue that preempts nothing warns of the order of preemption",
        f"{CORE}/validation/queue_limits.py",
        " or _never_preempts(cluster_queue):\n",
        ":\n",
        (LIMITS,),
    ),
    Mutation(
        "a cohort that reclaims quota counts as no preemption",
        f"{CORE}/validation/queue_limits.py",
        "    if not cluster_queue or _is_in_cohort(cluster_queue):\n",
        "    if not cluster_queue:\n",
        (LIMITS,),
    ),
    Mutation(
        "an AdmissionCheck that cannot be read hides the whole queue",
        f"{SHELL}/queue_reader.py",
        "        return QueueConfig(local, cluster, tuple(checks))\n",
        "        return QueueConfig(local, cluster, tuple(checks)) if all(checks) else QueueConfig()\n",
        ("tests/shell/test_queue_reader.py::test_a_refused_request_hides_no_other_object",),
    ),
    Mutation(
        "one flavor that does not match counts as all",
        f"{CORE}/observe/queue_faults.py",
        """doesn't match node affinity(?:, )?)+(?:$|;)",\n""",
        """doesn't match node affinity(?:, )?)+",\n""",
        ("tests/core/observe/test_workloads.py::test_hold",),
    ),
)
