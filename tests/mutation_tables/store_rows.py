"""Mutations of object stores, and of what is written beside checkpoints: metrics, rounds and exports."""

from tests.mutation_tables.mutation import TRAINER, Mutation

STORE_MUTATIONS = (
    Mutation(
        "data that contains a code of a busy store cannot be read",
        f"{TRAINER}/store/http_client.py",
        "(is_error and any(",
        "(any(",
        ("tests/trainer/store/test_busy_answers.py",),
    ),
    Mutation(
        "metrics that a store refuses at the end replace the outcome of a world",
        f"{TRAINER}/trackers/metrics_file.py",
        "        self._open.callback(_close, log, ",
        "        self._open.callback(lambda log, _: log.close(), log, ",
        ("tests/trainer/trackers/test_refused_metrics.py",),
    ),
    Mutation(
        "the last evaluation is skipped if a host dies meanwhile",
        f"{TRAINER}/monitoring/evaluation.py",
        "bool(due if step == self._last_step else due & self._deciding)",
        "bool(due & self._deciding)",
        ("tests/trainer/monitoring/test_evaluation.py",),
    ),
    Mutation(
        "a step that is evaluated again is not saved although it is among the best",
        f"{TRAINER}/loop.py",
        "    if not is_saved and (first >= last or (is_restored and checkpoints.is_best(losses))):\n",
        "    if not is_saved and first >= last:\n",
        ("tests/trainer/test_stopping.py::test_the_evaluation_of_a_restored_step",),
    ),
    Mutation(
        "an upload deletes the parts of another host that writes the same object",
        f"{TRAINER}/store/gcs_bucket.py",
        ' if now - datetime.fromisoformat(item["timeCreated"]) > ABANDONED_AGE:',
        " if True:",
        ("tests/trainer/store/test_upload_parts.py",),
    ),
    Mutation(
        "delete the rounds of a later lineage, which other replicas train in",
        f"{TRAINER}/replicas/round_files.py",
        "if lineage is not None and lineage < self._lineage:",
        "if lineage is not None and lineage != self._lineage:",
        ("tests/trainer/replicas/test_round_files.py::test_rounds_of_former_lineages_are_deleted",),
    ),
    Mutation(
        "a job succeeds although its exports were given up",
        f"{TRAINER}/checkpoint/kept_exports.py",
        "            self._gave_up = describe_unexpected(error)\n",
        "",
        ("tests/trainer/checkpoint/test_unexpected_export_errors.py",),
    ),
    Mutation(
        "an unexpected error of one host leaves the others waiting for its export or copy",
        f"{TRAINER}/checkpoint/error_exchange.py",
        "            problem = describe_unexpected(error)\n",
        "            raise\n",
        (
            "tests/trainer/checkpoint/test_unexpected_copy_errors.py",
            "tests/trainer/checkpoint/test_unexpected_export_errors.py",
        ),
    ),
    Mutation(
        "a copy begins after a process gave up, whose exchanges do not match",
        f"{TRAINER}/checkpoint/backup.py",
        'if decisions[0] == "copy" and "gave up" not in decisions:',
        'if decisions[0] == "copy":',
        ("tests/trainer/checkpoint/test_unexpected_copy_errors.py",),
    ),
)
