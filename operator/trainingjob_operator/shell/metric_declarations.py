"""Declarations of all Prometheus metrics: the exporters and `docs/metrics.md` are made from them.

Names follow https://prometheus.io/docs/practices/naming: base units, and `_total` for counters.
"""

from dataclasses import dataclass
from typing import Literal

from trainingjob_operator.core.goodput import Bucket
from trainingjob_operator.core.report.situation import Stage
from trainingjob_operator.shell.added_values import ADDED_TABLES, Table, describe_table
from trainingjob_operator.shell.attempt_counts import UNLISTED
from trainingjob_operator.shell.present_world import PHASE_NEW

type MetricKind = Literal["counter", "gauge", "histogram"]
type Exporter = Literal["operator", "webhook"]

JOB_LABELS = ("namespace", "name")
BOTH: tuple[Exporter, ...] = ("operator", "webhook")


@dataclass(frozen=True)
class MetricDeclaration:
    """A metric by the name under which Prometheus stores it; a histogram adds `_bucket`, `_sum` and `_count`."""

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    exporters: tuple[Exporter, ...] = ("operator",)


def _of_job(name: str, meaning: str, unit: str = "") -> MetricDeclaration:
    return MetricDeclaration(name, "gauge", meaning, JOB_LABELS, unit)


BUILD_INFO = MetricDeclaration("trainingjob_build_info", "gauge", "Always 1.", ("version",), exporters=BOTH)
REFUSED_ROWS: dict[Table, MetricDeclaration] = {
    table: MetricDeclaration(
        f"trainingjob_refused_{describe_table(table).replace(' ', '_')}",
        "gauge",
        f"1 for each of the administrator's {describe_table(table)} that the operator ignores as invalid. "
        "The log has the reason.",
        ("name",),
        exporters=BOTH,
    )
    for table in ADDED_TABLES
}
LEADING = MetricDeclaration("trainingjob_leading", "gauge", "1 while this operator is the leader.")
RECONCILE_DURATION = MetricDeclaration(
    "trainingjob_reconcile_duration_seconds", "histogram", "Duration of one reconciliation of one job.", (), "seconds"
)
RECONCILE_ERRORS = MetricDeclaration(
    "trainingjob_reconcile_errors_total", "counter", "Reconciliations of a job that failed and are retried."
)
QUEUE_LENGTH = MetricDeclaration(
    "trainingjob_reconcile_queue_length",
    "gauge",
    "Jobs that are due for a reconciliation and wait for a worker.",
    (),
    "jobs",
)
UNREADABLE_NAMESPACES = MetricDeclaration(
    "trainingjob_unreadable_namespaces",
    "gauge",
    "Namespaces of the chart's `watch.namespaces` whose objects the operator may not list. Their jobs wait.",
    (),
    "namespaces",
)
API_ERRORS = MetricDeclaration(
    "trainingjob_api_errors_total",
    "counter",
    "Requests to the API server that failed, without watches. Conflicts and missing objects (409, 404) are normal.",
    ("code",),
)
WEBHOOK_DURATION = MetricDeclaration(
    "trainingjob_webhook_duration_seconds",
    "histogram",
    "Duration of one webhook response.",
    ("allowed",),
    "seconds",
    ("webhook",),
)

JOBS = MetricDeclaration("trainingjob_jobs", "gauge", "Jobs by phase.", ("namespace", "phase"), "jobs")
PHASE = MetricDeclaration(
    "trainingjob_phase",
    "gauge",
    "Always 1. A job has one series, with its present phase.",
    (*JOB_LABELS, "phase"),
)
STEP = _of_job("trainingjob_step", "Completed optimizer steps.", "steps")
STEPS = _of_job("trainingjob_steps", "Total number of optimizer steps.", "steps")
LOSS = _of_job("trainingjob_loss", "Newest training loss.", "nats per token")
TOKENS_PER_SECOND = _of_job(
    "trainingjob_tokens_per_second", "Tokens per second over all devices. Absent: no world trains.", "tokens per second"
)
STEP_SECONDS = _of_job(
    "trainingjob_step_seconds",
    "Median duration of the newest optimizer steps. Absent: no world trains.",
    "seconds",
)
MFU_RATIO = _of_job(
    "trainingjob_mfu_ratio",
    "Model FLOPs of the newest step, divided by the peak FLOPs of all devices. Absent: no world trains, or "
    "the accelerator's rates are unknown.",
    "ratio",
)
DATA_LOADING_RATIO = _of_job(
    "trainingjob_data_loading_ratio",
    "Share of the step time in which the slowest host loads a batch. Loading overlaps with the step before: from about "
    "1 on, steps wait for data.",
    "ratio",
)
SKIPPED_STEPS = _of_job(
    "trainingjob_skipped_steps",
    "Steps whose update was skipped: their loss was not finite or a spike, or their batch had no loss.",
    "steps",
)
SAVE_SECONDS = _of_job(
    "trainingjob_checkpoint_save_seconds",
    "Seconds for which the newest save blocked training on the slowest host.",
    "seconds",
)
GOODPUT_RATIO = _of_job(
    "trainingjob_goodput_ratio",
    "Training seconds divided by all seconds of the job's lifetime, without suspensions.",
    "ratio",
)
STRAGGLER_RATIO = _of_job(
    "trainingjob_straggler_ratio",
    "Share of the time that the straggler costs all other hosts. The status names the straggler.",
    "ratio",
)
SLICES = _of_job("trainingjob_slices", "Slices in the present world. 0: the job has no world now.", "slices")
WANTED_SLICES = _of_job("trainingjob_wanted_slices", "Largest number of slices that the spec allows.", "slices")
BAD_NODES = _of_job("trainingjob_bad_nodes", "Nodes that alone ended two worlds of the job within a day.", "nodes")
LAST_COMMIT = _of_job(
    "trainingjob_checkpoint_last_commit_timestamp_seconds", "Time of the newest durable checkpoint.", "Unix seconds"
)
COMPLETION = _of_job(
    "trainingjob_completion_timestamp_seconds", "Time at which the job succeeded or failed.", "Unix seconds"
)
PREPARED_BYTES = _of_job(
    "trainingjob_prepared_bytes", "Bytes of text that the job has tokenized. Absent: it tokenizes no text now.", "bytes"
)
PREPARED_TOKENS = _of_job(
    "trainingjob_prepared_tokens",
    "Tokens of the text that the job has tokenized, also of an incomplete file. Absent: it tokenizes no text now.",
    "tokens",
)
CHECKPOINT_FAILING = _of_job("trainingjob_checkpoint_failing", "1 while a job has a world whose saves fail.")
BACKUP_FAILING = _of_job("trainingjob_backup_failing", "1 while a job has a world whose backups fail.")
EXPORT_FAILING = _of_job("trainingjob_export_failing", "1 while a job has a world whose exports fail.")
GOODPUT_SECONDS = MetricDeclaration(
    "trainingjob_goodput_seconds",
    "gauge",
    "Seconds of the job's lifetime by activity. Their sum is the time from `status.startTime` to now or to the end.",
    (*JOB_LABELS, "bucket"),
    "seconds",
)
LOST_STEPS = MetricDeclaration(
    "trainingjob_lost_steps_total",
    "counter",
    "Steps of earlier worlds that were trained again, since the begin of the leadership.",
    JOB_LABELS,
    "steps",
)
RESTARTS = MetricDeclaration(
    "trainingjob_restarts_total",
    "counter",
    "Restarts after unplanned ends of worlds, by cause, since the begin of the leadership. `status.restarts.total` "
    "counts the same over the job's lifetime.",
    (*JOB_LABELS, "reason"),
    "restarts",
)

METRICS = (
    *(BUILD_INFO, *REFUSED_ROWS.values(), LEADING, RECONCILE_DURATION, RECONCILE_ERRORS),
    *(QUEUE_LENGTH, UNREADABLE_NAMESPACES, API_ERRORS, WEBHOOK_DURATION),
    *(
        JOBS,
        PHASE,
        PREPARED_BYTES,
        PREPARED_TOKENS,
        STEP,
        STEPS,
        STEP_SECONDS,
        MFU_RATIO,
        DATA_LOADING_RATIO,
        SKIPPED_STEPS,
        LOSS,
        TOKENS_PER_SECOND,
        SLICES,
        WANTED_SLICES,
        BAD_NODES,
    ),
    *(RESTARTS, LOST_STEPS, STRAGGLER_RATIO),
    *(GOODPUT_RATIO, GOODPUT_SECONDS, COMPLETION, LAST_COMMIT, SAVE_SECONDS),
    *(CHECKPOINT_FAILING, BACKUP_FAILING, EXPORT_FAILING),
)
"""All metrics, in the order of the page."""

PAGE_HEADER = """\
<!-- Made by `make generate`; do not edit. -->
# Metrics

The operator and its webhook serve these Prometheus metrics at `/metrics` on port 8080. `metrics.serviceMonitor.enabled`
or `metrics.podMonitor.enabled` in the chart lets the Prometheus operator scrape them. `metrics.tls.enabled` serves them
with HTTPS on port 8444 instead, and `metrics.authentication.enabled` requires a token:
[operations.md](operations.md#metrics-and-alerts).
`metrics.alerts.enabled` adds alert rules. Each has a row in the [runbook](troubleshooting.md#alerts).

- Metrics with the labels `namespace` and `name` describe a job. Only the leader exports them, so sums count each job
  once. They disappear with the job.
- Both programs also export the `process_*` metrics of the Prometheus client: CPU, memory and open files.
- Agents and trainers have no endpoint. They report to the operator, and each step's values go to the trackers of
  [tracking-and-profiling.md](tracking-and-profiling.md).
"""


def render_metrics_page() -> str:
    """Return the text of `docs/metrics.md`."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {metric.unit} | {', '.join(f'`{label}`' for label in metric.labels)} "
        f"| {' and '.join(metric.exporters)} | {metric.meaning} |"
        for metric in METRICS
    ]
    buckets = ", ".join(f"`{bucket.value}`" for bucket in Bucket)
    table = ["| metric | type | unit | labels | exported by | meaning |", "|---|---|---|---|---|---|", *rows]
    labels = ["## Values of labels", "", "| label | values |", "|---|---|", f"| `bucket` | {buckets} |"]
    phases = ", ".join(f"`{phase}`" for phase in (PHASE_NEW, *Stage))
    labels.append(f"| `phase` | {phases} |")
    labels.append(
        "| `reason` | the reason of an attempt's cause: [troubleshooting.md](troubleshooting.md); "
        f"`{UNLISTED}`: the status has dropped the attempt |"
    )
    labels.append("| `code` | the HTTP status, or `unreachable`: no complete response |")
    labels.append("| `allowed` | `true`, `false` |")
    return "\n".join([PAGE_HEADER, *table, "", *labels]) + "\n"
