"""Mutations of decisions: which pods form a world, and which children are kept, moved and deleted."""

from tests.mutation_tables.mutation import CORE, Mutation

DECISION_MUTATIONS = (
    Mutation(
        "the replacement of an evicted pod ends a very large world",
        f"{CORE}/observe/members.py",
        "    for pod_names in (older, older | reported):\n",
        "    for pod_names in ():\n",
        ("tests/core/observe/test_members.py",),
    ),
    Mutation(
        "a pod created in the second of a world's start is taken for a member",
        f"{CORE}/observe/members.py",
        " >= MIN_LEAD_SECONDS\n",
        " > 0\n",
        ("tests/core/observe/test_members.py",),
    ),
)
