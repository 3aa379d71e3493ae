"""Mutations of lines that only a guarantee of `guarantees` needs, in the order of the guarantees."""

from tests.mutation_tables.mutation import CORE, SHELL, TRAINER, Mutation

RENDER = "operator/trainingjob_operator/render"

OPERATOR_GUARANTEES = (
    Mutation(
        "a list keeps what it does not show",
        f"{SHELL}/store.py",
        '            if namespace in ("", key[0]) and key not in listed:\n',
        "            if False:\n",
        ("tests/shell/test_reflector.py::test_whichever_event_is_lost_the_next_list_ends_the_same",),
    ),
    Mutation(
        "an old list drops what was written after it",
        f"{SHELL}/store.py",
        "                if version_of(stored) <= version:\n",
        "                if True:\n",
        ("tests/shell/test_store.py::test_list_preserves_later_writes",),
    ),
    Mutation(
        "the ConfigMap of a job stays as it was created",
        f"{SHELL}/children.py",
        "            if hash_data(newest) == hash_data(manifest):\n",
        "            if True:\n",
        ("tests/shell/test_edits.py::test_each_edit_comes_to_all_hosts",),
    ),
    Mutation(
        "an invalid edit makes the hosts wait",
        f"{SHELL}/invalid_jobs.py",
        "directive = directive or rebuild_directive(status, uid, pods, heartbeats)",
        "directive = directive or JobDirective(Directive.WAIT)",
        ("tests/shell/test_reconcile_edges.py::test_a_bad_edit_leaves_what_runs_alone_and_is_taken_back",),
    ),
    Mutation(
        "a soak ignores the errors that an operator logs",
        "e2e/soak/soak_run.py",
        "_CapturingHandler(logging.ERROR)",
        "_CapturingHandler(logging.CRITICAL)",
        ("tests/e2e/test_soak.py::test_an_error_that_an_operator_logs_is_noticed_with_its_cause",),
    ),
    Mutation(
        "each reconcile writes the ConfigMap again",
        f"{SHELL}/children.py",
        "            if hash_data(newest) == hash_data(manifest):\n",
        "            if False:\n",
        ("tests/shell/test_operator_away.py::test_one_operator_after_the_other_writes_no_child_again",),
    ),
    Mutation(
        "a pod that is lost while no operator runs counts as a failure",
        f"{CORE}/diagnose/health.py",
        'no longer exists", ago=item.age\n',
        'no longer exists", counted=True, ago=item.age\n',
        ("tests/shell/test_operator_away.py::test_pods_lost_during_an_outage_return_into_one_world",),
    ),
    Mutation(
        "the operator ends without its webhook configuration",
        f"{SHELL}/tls.py",
        '        except NotFoundError:\n            problem = "there is none"\n',
        "",
        ("tests/shell/test_tls.py::test_without_a_configuration_nothing_breaks",),
    ),
    Mutation(
        "lists ignore the delay that the API server requests",
        f"{SHELL}/reflector.py",
        "            self._requested_wait = max(self._requested_wait, error.retry_after)\n",
        "",
        ("tests/shell/test_reflector.py::test_reflector_waits_for_the_requested_delay",),
    ),
    Mutation(
        "the model of requests permits duplicate creations",
        "e2e/api_audit.py",
        "        if times > 1 + deleted[target]:\n",
        "        if False:\n",
        ("tests/e2e/test_requests.py::test_forbidden_requests_of_an_operator",),
    ),
    Mutation(
        "a deleted job keeps its directive",
        f"{SHELL}/reconcile.py",
        "        self._drop_former_job(namespace, name, uid)\n",
        "",
        ("tests/shell/test_operator_away.py::test_a_namespace_that_goes_takes_a_living_job_along",),
    ),
    Mutation(
        "one field of another version loses the whole status",
        f"{CORE}/stored_status.py",
        "for key, value in raw.items() if key not in broken}",
        "for key, value in raw.items() if not broken}",
        ("tests/core/report/test_status_writes.py::test_fields_that_make_no_sense_are_dropped_and_the_rest_is_kept",),
    ),
    Mutation(
        "times of a status stay where a clock is set",
        f"{SHELL}/status_writer.py",
        "        newest = shift_times(cache.newest, clock_adjustment - cache.clock_adjustment)\n",
        "        newest = cache.newest\n",
        ("tests/shell/test_fences.py::test_a_clock_that_is_set_ends_nothing",),
    ),
    Mutation(
        "a world that drained for its queue counts as a failure",
        f"{CORE}/decide/decision_rules.py",
        "WorldEnd(find_drain_cause(plan, seen, chosen), is_planned=True)",
        "WorldEnd(find_drain_cause(plan, seen, chosen), is_counted=True)",
        ("tests/shell/test_operator_away.py::test_a_queue_that_takes_its_quota_back_counts_no_failure",),
    ),
)
SECURITY_GUARANTEES = (
    Mutation(
        "pods may use the network of their node",
        f"{RENDER}/pod_policy.py",
        '        "enableServiceLinks": FALSE,\n',
        '        "enableServiceLinks": FALSE,\n        "hostNetwork": ANYTHING,\n',
        ("tests/render/test_pod_policy.py::test_field_outside_the_allow_list_is_rejected",),
    ),
    Mutation(
        "any user may name any ServiceAccount",
        f"{SHELL}/review_evaluation.py",
        '    return "" if name == before or is_invalid else name\n',
        '    return ""\n',
        ("tests/shell/test_webhook.py::test_a_service_account_needs_the_right_to_use_it",),
    ),
    Mutation(
        "containers of a job may gain privileges",
        f"{RENDER}/pod.py",
        '            "allowPrivilegeEscalation": False,\n',
        '            "allowPrivilegeEscalation": True,\n',
        ("tests/render/test_pod.py::test_rendered_pods_pass_the_policy",),
    ),
    Mutation(
        "the chart grants all verbs on pods",
        "charts/trainingjob/templates/rbac-jobs.yaml",
        "    resources: [pods]\n    verbs: [get, list, watch, delete]\n",
        '    resources: [pods]\n    verbs: ["*"]\n',
        ("tests/render/chart/test_rights.py::test_no_right_is_wider_than_its_use",),
    ),
    Mutation(
        "bodies of reviews have no limit in all",
        f"{SHELL}/webhook.py",
        "                    if self.held_bytes > self._max_held_bytes:\n",
        "                    if False:\n",
        ("tests/shell/test_webhook_hostile.py::test_bodies_above_the_capacity_must_retry",),
    ),
)
TRAINER_GUARANTEES = (
    Mutation(
        "commit a step before its files",
        f"{TRAINER}/checkpoint/commit.py",
        "            writing.write()\n            self._votes.exchange_results()\n",
        "            write_integrity(folder, record)\n            writing.write()\n"
        "            self._votes.exchange_results()\n",
        ("tests/trainer/checkpoint/test_killed_saves.py",),
    ),
    Mutation(
        "a host that cannot write reports no error to its peers",
        f"{TRAINER}/checkpoint/commit.py",
        "            self._votes.exchange_results(describe_error(error))\n",
        "            self._votes.exchange_results()\n",
        ("tests/trainer/checkpoint/test_commit.py::test_failure_on_one_host_fails_the_save_on_all",),
    ),
    Mutation(
        "compare the sizes of files alone",
        f"{TRAINER}/checkpoint/manifest.py",
        "        if seen.sha256 != fingerprint.sha256:\n",
        "        if False:\n",
        ("tests/trainer/checkpoint/test_damage.py::test_a_damaged_step_is_reported_set_aside_and_passed_over",),
    ),
    Mutation(
        "start from scratch where all steps are damaged",
        f"{TRAINER}/checkpoint/candidates.py",
        "        if not (self._reports.found or known):\n",
        "        if True:\n",
        ("tests/trainer/checkpoint/test_damage.py::test_training_never_starts_from_scratch_because_of_damage",),
    ),
    Mutation(
        "evaluate before a world that must leave has saved",
        f"{TRAINER}/monitoring/step_actions.py",
        "    evaluate = due.evaluation and leave is not Leave.WITH_CHECKPOINT\n",
        "    evaluate = due.evaluation\n",
        ("tests/trainer/test_loop.py::test_the_order_of_a_step",),
    ),
    Mutation(
        "an error that follows from a lost peer is the cause",
        f"{CORE}/diagnose/health.py",
        "not (item.failed_for_lost_peer or _is_exit_unknown(item.member_view, failure))",
        "not _is_exit_unknown(item.member_view, failure)",
        ("tests/shell/test_gang.py::test_one_loss_is_one_restart_of_all",),
    ),
    Mutation(
        "refuse the steps of older trainers",
        f"{TRAINER}/checkpoint/items.py",
        "        return _find_in_older(state, saved.state)\n",
        "        return None\n",
        ("tests/trainer/checkpoint/test_older_steps.py::test_a_step_that_an_older_orbax_wrote_is_restored",),
    ),
)
GUARANTEE_MUTATIONS = (*OPERATOR_GUARANTEES, *SECURITY_GUARANTEES, *TRAINER_GUARANTEES)
