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
)
