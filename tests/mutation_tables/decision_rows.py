"""Mutations of decisions: which pods form a world, and which children are kept, moved and deleted."""

from tests.mutation_tables.mutation import CORE, Mutation

DECISION_MUTATIONS = (
    Mutation(
        "the replacement of an evicted pod ends a very large world",
        f"{CORE}/observe/members.py",
        "    for pod_names in _list_candidates(world, by_uid, latest_reports):\n",
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
    Mutation(
        "a slice that loses a pod takes its bad node back",
        f"{CORE}/diagnose/bad_nodes.py",
        "    return any(slice_.unschedulable_seconds > SEARCH_SECONDS for slice_ in slices)\n",
        "    return any(not slice_.is_placed for slice_ in slices)\n",
        ("tests/core/diagnose/test_bad_nodes.py",),
    ),
    Mutation(
        "time in a queue counts as a search for another node",
        f"{CORE}/diagnose/bad_nodes.py",
        "    if not jobset.avoided_nodes or jobset.suspended:\n",
        "    if not jobset.avoided_nodes:\n",
        ("tests/core/diagnose/test_bad_nodes.py",),
    ),
    Mutation(
        "a withdrawn signal recreates all slices that search for a node",
        f"{CORE}/decide/child_maintenance.py",
        "    return (is_searching and was_bad) or has_search_timed_out(seen, jobset)\n",
        "    return is_searching or has_search_timed_out(seen, jobset)\n",
        ("tests/core/diagnose/test_avoided_nodes.py",),
    ),
    Mutation(
        "a bad node that may be used again costs held slices their place in the queue",
        f"{CORE}/decide/child_maintenance.py",
        "slice_.unschedulable_seconds > 0 and not jobset.suspended\n",
        "slice_.unschedulable_seconds > 0\n",
        ("tests/core/diagnose/test_bad_nodes.py",),
    ),
    Mutation(
        "a pod on a dead node delays a suspension until the node returns",
        f"{CORE}/decide/child_maintenance.py",
        "        return (*_stop_preparation(seen), *jobsets, *_delete_stuck_pods(seen.pods))\n",
        "        return (*_stop_preparation(seen), *jobsets)\n",
        ("tests/core/decide/test_child_maintenance.py",),
    ),
    Mutation(
        "a slice above the maximum trains for ever",
        f"{CORE}/decide/healthy_world.py",
        "    elif removed := _list_removed_slices(plan, seen):\n",
        "    elif removed := ():\n",
        ("tests/core/decide/test_elastic.py",),
    ),
    Mutation(
        "a lower maximum ends a world that the minimum needs",
        f"{CORE}/decide/healthy_world.py",
        "    return removed if removed and plan.find_largest_size(len(list_ready_slices(plan, seen))) else []\n",
        "    return removed\n",
        ("tests/core/decide/test_elastic.py",),
    ),
    Mutation(
        "a warning about an elastic slice is shown for the minimum",
        f"{CORE}/observe/observed.py",
        """            or object_name.startswith(f"{job}-")\n""",
        """            or object_name.startswith(f"{jobset}-")\n""",
        ("tests/core/observe/test_observed.py",),
    ),
)
