"""The tables of mutations: a line of the code, its mutated form, and the tests that fail then.

Each part of the code has a table. `make mutations` runs them all.
"""

from tests.mutation_tables.agent_rows import AGENT_MUTATIONS
from tests.mutation_tables.chart_rows import CHART_MUTATIONS
from tests.mutation_tables.checkpoint_rows import CHECKPOINT_MUTATIONS
from tests.mutation_tables.data_rows import DATA_MUTATIONS
from tests.mutation_tables.decision_rows import DECISION_MUTATIONS
from tests.mutation_tables.guarantee_rows import GUARANTEE_MUTATIONS
from tests.mutation_tables.installation_rows import INSTALLATION_MUTATIONS
from tests.mutation_tables.learning_rows import LEARNING_MUTATIONS
from tests.mutation_tables.metric_rows import METRIC_MUTATIONS
from tests.mutation_tables.mutation import Mutation
from tests.mutation_tables.network_rows import NETWORK_MUTATIONS
from tests.mutation_tables.operator_rows import SERVICE_ACCOUNT_MUTATIONS, SHELL_MUTATIONS
from tests.mutation_tables.outage_rows import OUTAGE_MUTATIONS
from tests.mutation_tables.planner_rows import PLANNER_MUTATIONS
from tests.mutation_tables.queue_rows import QUEUE_MUTATIONS
from tests.mutation_tables.report_rows import REPORT_MUTATIONS
from tests.mutation_tables.store_rows import STORE_MUTATIONS
from tests.mutation_tables.trainer_rows import TRAINER_MUTATIONS
from tests.mutation_tables.world_rows import NODE_MUTATIONS, START_MUTATIONS

MUTATIONS: tuple[Mutation, ...] = (
    *NODE_MUTATIONS,
    *SHELL_MUTATIONS,
    *SERVICE_ACCOUNT_MUTATIONS,
    *AGENT_MUTATIONS,
    *TRAINER_MUTATIONS,
    *CHART_MUTATIONS,
    *CHECKPOINT_MUTATIONS,
    *REPORT_MUTATIONS,
    *START_MUTATIONS,
    *DECISION_MUTATIONS,
    *NETWORK_MUTATIONS,
    *QUEUE_MUTATIONS,
    *OUTAGE_MUTATIONS,
    *STORE_MUTATIONS,
    *DATA_MUTATIONS,
    *LEARNING_MUTATIONS,
    *INSTALLATION_MUTATIONS,
    *GUARANTEE_MUTATIONS,
    *METRIC_MUTATIONS,
    *PLANNER_MUTATIONS,
)
