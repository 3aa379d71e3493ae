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
)
