"""Mutations of what the command line reports about jobs of a cluster."""

from tests.mutation_tables.mutation import CLI, Mutation

REPORT = "tests/cli/test_report.py"

CLI_MUTATIONS = (
    Mutation(
        "show the last phase of a job whose stored spec is invalid as if it were observed",
        f"{CLI}/report.py",
        'if valid and valid.status == "False" and kind != "Valid":',
        'if valid and valid.status == "Unknown" and kind != "Valid":',
        (REPORT,),
    ),
)
