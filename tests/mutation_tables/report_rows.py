"""Mutations of what conditions and the command line report about jobs of a cluster."""

from tests.mutation_tables.mutation import CLI, CORE, SHELL, TRAINER, Mutation

ABSENT = "tests/core/report/test_absent_slices.py"
REPORT = "tests/cli/test_report.py"
OUTCOME = "tests/core/report/test_outcome_messages.py"

REPORT_MUTATIONS = (
    Mutation(
        "show the last phase of a job whose stored spec is invalid as if it were observed",
        f"{CLI}/report.py",
        'if valid and valid.status == "False" and kind != "Valid":',
        'if valid and valid.status == "Unknown" and kind != "Valid":',
        (REPORT,),
    ),
    Mutation(
        "advise to create a failed job again without a takeover of its folder",
        f"{CORE}/report/outcome_messages.py",
        '        conditions = f"with {folder} and `spec.checkpoint.takeover: true`"\n',
        '        conditions = f"with {folder}"\n',
        (OUTCOME,),
    ),
    Mutation(
        "advise a takeover after a failed program, which validation rejects",
        f"{CORE}/report/outcome_messages.py",
        "    if spec.command_program:  # it reads",
        "    if False:  # it reads",
        (OUTCOME,),
    ),
    Mutation(
        "cut off the next step of a failed job with a long cause",
        f"{CORE}/report/conditions.py",
        "    cause = message[: MAX_MESSAGE_LENGTH - len(next_start) - 1]\n",
        "    cause = message\n",
        (OUTCOME,),
    ),
    Mutation(
        "accept a fault of a slice that a local run does not have",
        f"{CLI}/local/run.py",
        "        if fault.slice >= num_slices:\n",
        "        if fault.slice > num_slices:\n",
        ("tests/cli/test_run.py::test_a_fault_that_would_never_happen_is_rejected",),
    ),
    Mutation(
        "simulate spans of any length, which never ends",
        f"{CLI}/simulate.py",
        "    if seconds > MAX_SPAN_DAYS * DAY:\n",
        "    if False:\n",
        ("tests/cli/test_simulate.py::test_jobs_that_cannot_be_simulated",),
    ),
    Mutation(
        "divide logits by a temperature that is not finite",
        f"{CLI}/model_commands.py",
        "    if temperature is not None and not 0 < temperature < math.inf:",
        "    if temperature is not None and temperature <= 0:",
        ("tests/cli/test_sample.py::test_what_the_command_cannot_use_is_named",),
    ),
    Mutation(
        "report no batch without a loss: a job of such batches succeeds in silence",
        f"{TRAINER}/monitoring/step_reporter.py",
        "            skipped_lately=sum(self._skips) + sum(self._untrained),\n",
        "            skipped_lately=sum(self._skips),\n",
        ("tests/trainer/test_reports.py::test_batches_without_a_loss_are_reported_and_end_no_job",),
    ),
    Mutation(
        "report no loss that does not depend on the parameters",
        f"{TRAINER}/monitoring/step_reporter.py",
        "isnan(loss) or float(step_metrics.grad_norm) == 0",
        "isnan(loss)",
        ("tests/trainer/test_reports.py::test_a_loss_without_a_gradient_is_reported_and_ends_no_job",),
    ),
    Mutation(
        "treat a job with an entrypoint as a program whose end is the end of all steps",
        f"{CLI}/local/resume.py",
        'get_value(job, "spec", "program", "command") is not None',
        'get_value(job, "spec", "program") is not None',
        ("tests/cli/test_local_job.py",),
    ),
    Mutation(
        "resume a local run with another objective in silence",
        f"{CLI}/local/resume.py",
        '    ("objective",),\n',
        "",
        ("tests/cli/test_local_job.py",),
    ),
    Mutation(
        "report that a suspended program has saved, which it may have refused",
        f"{CORE}/decide/healthy_world.py",
        '    if not plan.spec.command_program:\n        return "saved',
        '    if True:\n        return "saved',
        ("tests/core/decide/test_program_suspension.py",),
    ),
    Mutation(
        "write no event about a stored job that became invalid",
        f"{SHELL}/invalid_jobs.py",
        "        if status.problems != before.problems:",
        "        if not status.problems:",
        ("tests/shell/test_reconcile_invalid.py",),
    ),
    Mutation(
        "report only the first of several lost slices",
        f"{CORE}/report/situation.py",
        "                messages = _list_absences(seen.slices, heartbeat_timeout)\n",
        "                messages = _list_absences((slice_,), heartbeat_timeout)\n",
        (ABSENT,),
    ),
    Mutation(
        "a job that has not started keeps outdated messages",
        f"{CORE}/report/status_writes.py",
        "    if old.start_time is None:\n",
        "    if False:\n",
        ("tests/core/report/test_status_writes.py",),
    ),
    Mutation(
        "an edit of the deadline fails a job at once",
        f"{CORE}/validation/validate_update.py",
        "deadline != before and deadline < run_seconds:",
        "deadline != before and deadline < 0:",
        ("tests/core/validation/test_validate_update.py",),
    ),
    Mutation(
        "an edit of the epochs ends a job before its current step",
        f"{CORE}/validation/validate_update.py",
        "    if steps < done:",
        "    if steps < 0:",
        ("tests/core/validation/test_validate_update.py",),
    ),
    Mutation(
        "an edit leaves fewer epochs than the schedule needs",
        f"{CORE}/validation/validate_update.py",
        "    yield from _check_schedule(new, epochs, steps)\n",
        "",
        ("tests/core/validation/test_validate_update.py",),
    ),
)
