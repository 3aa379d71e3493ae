"""The 30 guarantees of the operator and its jobs: the tests that hold each, and a mutation that they kill.

`docs/faults.md` describes the faults. This table shows that no guarantee rests on a test that cannot fail.
"""

from dataclasses import dataclass

AWAY = "tests/shell/test_operator_away.py"
BUDGETS = "tests/core/diagnose/test_start_budgets.py"
CHECKPOINT = "tests/trainer/checkpoint"
JOURNEYS = "e2e/journeys"
SAMPLER = "tests/trainer/data/test_sampler.py"


@dataclass(frozen=True)
class Guarantee:
    """A statement, its tests, and the names of mutations. Each mutation is killed by one of the tests."""

    statement: str
    tests: tuple[str, ...]
    mutations: tuple[str, ...]


OPERATOR = (
    Guarantee(
        "An operator that is killed before or after any write leaves the same objects in the end.",
        (
            "tests/shell/test_reconcile_strikes.py::test_a_fault_at_any_write_changes_nothing_in_the_end",
            "tests/shell/test_each_write.py::test_each_single_write_is_struck_again_and_again",
        ),
        ("announce before the status is written",),
    ),
    Guarantee(
        "The next list repairs whatever any lost event of a watch has left out.",
        ("tests/shell/test_reflector.py::test_whichever_event_is_lost_the_next_list_ends_the_same",),
        ("a list keeps what it does not show",),
    ),
    Guarantee(
        "Old lists and reads delete nothing that is current, and create no JobSet twice.",
        (
            f"{AWAY}::test_an_operator_that_reads_old_lists_harms_nothing_that_is_current",
            "tests/shell/test_store.py::test_list_preserves_later_writes",
        ),
        ("an old list drops what was written after it",),
    ),
    Guarantee(
        "After any edits that the schema allows, a job equals one that was created with its last spec.",
        (
            "tests/shell/test_edits.py::test_job_ends_like_one_created_with_its_last_spec",
            "tests/shell/test_edits.py::test_each_edit_comes_to_all_hosts",
        ),
        ("the ConfigMap of a job stays as it was created",),
    ),
    Guarantee(
        "An invalid edit changes nothing that runs, and its reversal restores the former state.",
        ("tests/shell/test_reconcile_edges.py::test_a_bad_edit_leaves_what_runs_alone_and_is_taken_back",),
        ("an invalid edit makes the hosts wait",),
    ),
    Guarantee(
        "Tests with faults fail if an operator crashes, stalls or logs an error.",
        (
            "tests/e2e/test_soak.py::test_an_error_that_an_operator_logs_is_noticed_with_its_cause",
            "tests/e2e/test_product.py::test_errors_are_found_in_the_logs_of_operators_and_webhooks_that_run",
        ),
        ("a soak ignores the errors that an operator logs",),
    ),
    Guarantee(
        "A child that is applied again does not change.",
        (
            f"{AWAY}::test_one_operator_after_the_other_writes_no_child_again",
            f"{JOURNEYS}/test_operator_outage.py::test_child_that_is_applied_three_times_is_unchanged",
        ),
        ("each reconcile writes the ConfigMap again",),
    ),
    Guarantee(
        "Pods that are lost while no operator runs return into one world, without a counted failure.",
        (
            f"{AWAY}::test_pods_lost_during_an_outage_return_into_one_world",
            f"{JOURNEYS}/test_operator_outage.py::test_pods_lost_during_an_outage_return_into_one_world",
        ),
        ("a pod that is lost while no operator runs counts as a failure",),
    ),
    Guarantee(
        "Without its webhook configuration the operator continues, and the API server still checks the schema.",
        (
            "tests/shell/test_tls.py::test_without_a_configuration_nothing_breaks",
            "tests/api/test_schema.py::test_optional_immutable_fields_are_compared_when_unset",
            f"{JOURNEYS}/test_operator_outage.py::test_invalid_job_without_the_webhook_has_a_condition",
        ),
        ("the operator ends without its webhook configuration", "an immutable field that may be removed"),
    ),
    Guarantee(
        "Ten minutes of rejected, delayed or hanging requests end with the same state and a bounded rate of requests.",
        (
            "tests/shell/test_outages.py::test_ten_minutes_without_writes_change_nothing_in_the_end",
            "tests/shell/test_reflector.py::test_reflector_waits_for_the_requested_delay",
        ),
        ("lists ignore the delay that the API server requests",),
    ),
    Guarantee(
        "Of two operators only the holder of the Lease writes.",
        (
            "tests/shell/test_fenced_cluster.py::test_only_the_leader_writes",
            "tests/shell/test_fences.py::test_two_operators_at_once_make_one_history",
            f"{JOURNEYS}/test_operator_faults.py::test_two_operators_for_a_minute_change_nothing",
            f"{JOURNEYS}/test_leader_faults.py::test_paused_leader_writes_nothing_when_it_continues",
        ),
        ("write without the Lease",),
    ),
    Guarantee(
        "A model checks all requests of an operator, and all statuses that it writes.",
        (
            "tests/e2e/test_requests.py::test_forbidden_requests_of_an_operator",
            "tests/shell/test_simulation.py::test_a_job_ends_well_when_faults_stop",
        ),
        ("the model of requests permits duplicate creations",),
    ),
    Guarantee(
        "The deletion of a namespace with running jobs waits for nothing.",
        (
            f"{AWAY}::test_a_namespace_that_goes_takes_a_living_job_along",
            f"{JOURNEYS}/test_lifecycle.py::test_a_namespace_that_is_deleted_takes_a_training_job_along",
            f"{JOURNEYS}/test_lifecycle.py::test_nothing_carries_a_finalizer",
        ),
        ("a deleted job keeps its directive",),
    ),
    Guarantee(
        "An upgrade and a rollback keep stored jobs, and end no world.",
        (
            "tests/core/report/test_status_writes.py::test_fields_that_make_no_sense_are_dropped_and_the_rest_is_kept",
            f"{JOURNEYS}/test_release_upgrade.py::test_upgrade_and_rollback_reject_no_job_and_end_no_world",
        ),
        ("one field of another version loses the whole status",),
    ),
    Guarantee(
        "A clock that is set by an hour ends no wait, deadline or token.",
        (
            "tests/shell/test_fences.py::test_a_clock_that_is_set_ends_nothing",
            "tests/shell/test_login.py::test_token_is_not_used_past_its_expiry_after_the_clock_is_set_back",
        ),
        ("times of a status stay where a clock is set",),
    ),
    Guarantee(
        "A suspension or a preemption by Kueue is no failure, also during a restart.",
        (
            f"{AWAY}::test_a_queue_that_takes_its_quota_back_counts_no_failure",
            f"{AWAY}::test_a_suspension_in_the_middle_of_a_restart_counts_one_failure_and_no_more",
        ),
        ("a world that drained for its queue counts as a failure",),
    ),
)
SECURITY = (
    Guarantee(
        "No field reaches a rendered pod that is not in the allow-list.",
        (
            "tests/render/test_pod_policy.py::test_field_outside_the_allow_list_is_rejected",
            "tests/render/test_pod_policy.py::test_every_object_of_a_pod_rejects_unknown_fields",
        ),
        ("pods may use the network of their node",),
    ),
    Guarantee(
        "A user can name only a ServiceAccount that this user may `use`.",
        (
            "tests/shell/test_webhook.py::test_a_service_account_needs_the_right_to_use_it",
            "tests/shell/test_service_account_check.py::test_service_account_needs_proof_of_admission_by_the_webhook",
        ),
        ("any user may name any ServiceAccount", "allow any ServiceAccount without the webhook"),
    ),
    Guarantee(
        "All rendered pods satisfy the Pod Security level `restricted`.",
        ("tests/render/test_pod.py::test_rendered_pods_pass_the_policy",),
        ("containers of a job may gain privileges",),
    ),
    Guarantee(
        "The chart grants no right that the operator does not use, and none beyond the watched namespaces.",
        (
            "tests/render/chart/test_rights.py::test_no_right_is_wider_than_its_use",
            "tests/render/chart/test_rights.py::test_each_right_is_documented_with_its_reason",
            "tests/render/chart/test_rights.py::test_rights_over_jobs_end_at_the_watched_namespaces",
        ),
        ("the chart grants all verbs on pods",),
    ),
    Guarantee(
        "Hostile reviews get an answer within a second, with bounded memory, and delay no other review.",
        (
            "tests/shell/test_webhook_hostile.py::test_hostile_job_is_rejected_at_once",
            "tests/shell/test_webhook_hostile.py::test_bodies_above_the_capacity_must_retry",
        ),
        ("bodies of reviews have no limit in all",),
    ),
    Guarantee(
        "No secret is in a log, event, status, metric or response.",
        (
            "tests/shell/test_secrets.py::test_a_secret_of_the_trainers_environment_is_nowhere_after_a_whole_life",
            "tests/shell/test_secrets.py::test_message_of_the_api_server_about_a_token_is_redacted",
            "tests/trainer/agent/test_supervisor.py::test_a_secret_that_a_trainer_logs_as_it_dies_is_not_reported",
        ),
        ("report secrets", "carry on what the API server quotes of a token"),
    ),
)
TRAINER = (
    Guarantee(
        "A save that is killed at any file operation leaves the last committed step as the newest.",
        (f"{CHECKPOINT}/test_killed_saves.py::test_whenever_a_save_is_killed_the_newest_proven_step_is_found",),
        ("commit a step before its files",),
    ),
    Guarantee(
        "A save that fails on one host fails on all, and is tried again soon.",
        (
            f"{CHECKPOINT}/test_commit.py::test_failure_on_one_host_fails_the_save_on_all",
            f"{CHECKPOINT}/test_checkpoints.py::test_failed_save_is_soon_requested_again",
        ),
        ("a host that cannot write reports no error to its peers",),
    ),
    Guarantee(
        "Damage is found and reported, an older step is restored, and no job starts from scratch silently.",
        (
            f"{CHECKPOINT}/test_damage.py::test_a_damaged_step_is_reported_set_aside_and_passed_over",
            f"{CHECKPOINT}/test_damage.py::test_training_never_starts_from_scratch_because_of_damage",
        ),
        ("compare the sizes of files alone", "start from scratch where all steps are damaged"),
    ),
    Guarantee(
        "A world that must leave saves, or loses at most one interval, whatever it is doing.",
        (
            "tests/trainer/test_loop.py::test_the_order_of_a_step",
            "tests/trainer/test_leaving.py::test_drain_during_compilation_leaves_after_the_second_step_and_saves_it",
            "tests/trainer/test_leaving.py::test_drain_during_an_evaluation_saves_the_step_and_the_next_world_evaluates_it",
        ),
        ("evaluate before a world that must leave has saved",),
    ),
    Guarantee(
        "A world that is killed at any step resumes to the same bits, and each sample is used once.",
        (
            "tests/trainer/test_killed_worlds.py::test_world_killed_at_any_step_resumes_to_the_same_bits",
            f"{SAMPLER}::test_no_sample_comes_twice_or_never_however_often_the_batch_size_changes",
        ),
        ("move the data position with the batch size",),
    ),
    Guarantee(
        "A host that stalls before the first step is named, and its world restarts within a budget.",
        (
            f"{BUDGETS}::test_a_member_in_each_state_holds_up_its_world_no_longer_than_its_budget",
            "tests/e2e/test_stuck.py::test_host_that_stalls_before_the_first_step_is_named",
        ),
        ("wait for a stopped process without end",),
    ),
    Guarantee(
        "One lost process, host or pod is one restart of the whole world, and one attempt.",
        ("tests/shell/test_gang.py::test_one_loss_is_one_restart_of_all",),
        ("an error that follows from a lost peer is the cause",),
    ),
    Guarantee(
        "Steps that an older Orbax wrote are restored.",
        (f"{CHECKPOINT}/test_older_steps.py::test_a_step_that_an_older_orbax_wrote_is_restored",),
        ("refuse the steps of older trainers",),
    ),
)
GUARANTEES = (*OPERATOR, *SECURITY, *TRAINER)
