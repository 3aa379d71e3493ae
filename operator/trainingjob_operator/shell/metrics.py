"""Prometheus metrics of the operator, of its webhook and of every job.

Each scrape reads a job's metrics from its status, so the metrics of a deleted job disappear. Labels are object names or
fixed enumerations, so that users cannot cause a high cardinality.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trainingjob_operator.core.goodput import Bucket
from trainingjob_operator.core.manifests import Manifest, get_int, get_text, get_value, iter_items
from trainingjob_operator.core.times import parse_time
from trainingjob_operator.shell import metric_declarations as declared
from trainingjob_operator.shell.added_values import InvalidRow
from trainingjob_operator.shell.metric_declarations import MetricDeclaration
from trainingjob_operator.shell.store import KindStore

RECONCILE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
REVIEW_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)
GAUGES = (
    (declared.STEP, ("progress", "step")),
    (declared.STEPS, ("progress", "of")),
    (declared.LOSS, ("progress", "loss")),
    (declared.TOKENS_PER_SECOND, ("progress", "tokensPerSecond")),
    (declared.STEP_SECONDS, ("progress", "stepSeconds")),
    (declared.SKIPPED_STEPS, ("progress", "skipped")),
    (declared.SAVE_SECONDS, ("progress", "saveSeconds")),
    (declared.GOODPUT_RATIO, ("goodput", "ratio")),
    (declared.STRAGGLER_RATIO, ("straggler", "ratio")),
)
"""Metrics whose value is a number of the job's status, with its path there."""
FAILING = (
    (declared.CHECKPOINT_FAILING, "failingSaves"),
    (declared.BACKUP_FAILING, "failingCopies"),
    (declared.EXPORT_FAILING, "failingExports"),
)
"""Metrics that are 1 while the status of a job with a world has a field."""
PHASE_NEW = "New"
"""Phase label of a job without a status."""


class ProcessMetrics:
    """Metrics of any process of the operator's program, in `registry`."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, CPU, open files
        self._invalid_rows = {table: self._make_gauge(metric) for table, metric in declared.REFUSED_ROWS.items()}
        self._make_gauge(declared.BUILD_INFO).labels(version).set(1)

    def _make_gauge(self, metric: MetricDeclaration) -> Gauge:
        return Gauge(metric.name, metric.meaning, metric.labels, registry=self.registry)

    def _make_histogram(self, metric: MetricDeclaration, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(metric.name, metric.meaning, metric.labels, buckets=buckets, registry=self.registry)

    def record_invalid_rows(self, rows: Iterable[InvalidRow]) -> None:
        """Record what the process ignores of an administrator's values; an empty name stands for a whole file."""
        for row in rows:
            self._invalid_rows[row.table].labels(row.name).set(1)


class WebhookMetrics(ProcessMetrics):
    """Metrics of the webhook."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.review_seconds = self._make_histogram(declared.WEBHOOK_DURATION, REVIEW_BUCKETS)

    def record_review(self, seconds: float, is_allowed: bool) -> None:  # noqa: FBT001  # the webhook's callback
        """Record one webhook review."""
        self.review_seconds.labels(str(is_allowed).lower()).observe(seconds)


class Metrics(ProcessMetrics):
    """Metrics of the operator. `registry` holds them and the job metrics."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.reconcile_seconds = self._make_histogram(declared.RECONCILE_DURATION, RECONCILE_BUCKETS)
        errors = declared.RECONCILE_ERRORS
        self.reconcile_errors = Counter(errors.name, errors.meaning, errors.labels, registry=self.registry)
        self.leader = self._make_gauge(declared.LEADING)

    def record_reconcile(self, seconds: float, has_failed: bool) -> None:  # noqa: FBT001  # the scheduler's callback
        """Record one reconcile."""
        self.reconcile_seconds.observe(seconds)
        if has_failed:
            self.reconcile_errors.inc()

    def register_jobs(self, jobs: KindStore, since: datetime, is_leading: Callable[[], bool] = lambda: True) -> None:
        """Register the metrics of all jobs; `since` is the start time of this process.

        Only the leader has them: sums over all replicas would count each job twice.
        """
        self.registry.register(JobCollector(jobs, since, is_leading))


class JobCollector(Collector):
    """Collects the metrics of jobs from their statuses."""

    def __init__(self, jobs: KindStore, since: datetime, is_leading: Callable[[], bool]) -> None:
        """Read jobs from the store. Restarts count from `since` on: an earlier process counted the others."""
        self._is_leading = is_leading
        self._jobs = jobs
        self._since = since
        self._restarts: dict[str, _Restarts] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        if not self._is_leading():
            return
        jobs = tuple(self._jobs)
        yield _jobs_by_phase(jobs)
        for metric, path in GAUGES:
            yield _gauge(metric, jobs, path)
        yield _slices(jobs)
        yield _last_commits(jobs)
        for metric, field in FAILING:
            yield _failing(metric, jobs, field)
        yield _goodput_seconds(jobs)
        yield self._count_restarts(jobs)

    def _count_restarts(self, jobs: Iterable[Manifest]) -> Metric:
        metric = declared.RESTARTS
        family = CounterMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        counted = {}
        for job in jobs:
            uid = get_text(job, "metadata", "uid")
            restarts = counted[uid] = self._restarts.get(uid) or _Restarts(self._baseline(job))
            restarts.update(job)
            for reason, count in restarts.by_reason.items():
                family.add_metric([*_names(job), reason], count)
        self._restarts = counted  # drops the counts of deleted jobs
        return family

    def _baseline(self, job: Manifest) -> int:
        """Return the newest ended generation; 0 for a job that was created after the start of this process."""
        created = parse_time(get_text(job, "metadata", "creationTimestamp"))
        if created is not None and created >= self._since:
            return 0
        ended = [
            get_int(attempt, "generation") or 0
            for attempt in iter_items(job, "status", "attempts")
            if "cause" in attempt
        ]
        return max(ended, default=0)


class _Restarts:
    """Number of ended worlds of one job, by reason."""

    def __init__(self, baseline: int) -> None:
        self.by_reason: dict[str, int] = {}
        self._counted = baseline

    def update(self, job: Manifest) -> None:
        """Count newly ended worlds."""
        for attempt in iter_items(job, "status", "attempts"):
            generation, reason = get_int(attempt, "generation") or 0, get_text(attempt, "cause", "reason")
            if reason and generation > self._counted:
                self._counted = generation
                self.by_reason[reason] = self.by_reason.get(reason, 0) + 1


def _jobs_by_phase(jobs: Iterable[Manifest]) -> Metric:
    family = _family(declared.JOBS)
    counts: dict[tuple[str, str], int] = {}
    for job in jobs:
        key = (get_text(job, "metadata", "namespace"), get_text(job, "status", "phase") or PHASE_NEW)
        counts[key] = counts.get(key, 0) + 1
    for key, count in counts.items():
        family.add_metric(key, count)
    return family


def _family(metric: MetricDeclaration) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)


def _gauge(metric: MetricDeclaration, jobs: Iterable[Manifest], path: tuple[str, ...]) -> Metric:
    family = _family(metric)
    for job in jobs:
        if (value := _float(get_value(job, "status", *path))) is not None:
            family.add_metric(_names(job), value)
    return family


def _slices(jobs: Iterable[Manifest]) -> Metric:
    family = _family(declared.SLICES)
    for job in jobs:
        slices = get_value(job, "status", "world", "slices")
        if isinstance(slices, list):
            family.add_metric(_names(job), len(slices))
    return family


def _last_commits(jobs: Iterable[Manifest]) -> Metric:
    family = _family(declared.LAST_COMMIT)
    for job in jobs:
        if (time := parse_time(get_text(job, "status", "checkpoint", "time"))) is not None:
            family.add_metric(_names(job), time.timestamp())
    return family


def _failing(metric: MetricDeclaration, jobs: Iterable[Manifest], field: str) -> Metric:
    family = _family(metric)
    for job in jobs:
        if get_value(job, "status", "world"):
            family.add_metric(_names(job), float(bool(get_value(job, "status", field))))
    return family


def _goodput_seconds(jobs: Iterable[Manifest]) -> Metric:
    """Return the goodput seconds by bucket. A gauge, since time that turns out to be lost moves to another bucket."""
    family = _family(declared.GOODPUT_SECONDS)
    buckets = {bucket.value for bucket in Bucket}
    for job in jobs:
        seconds = get_value(job, "status", "goodput", "seconds")
        for bucket, value in (seconds if isinstance(seconds, dict) else {}).items():
            if bucket in buckets and (seconds_ := _float(value)) is not None:
                family.add_metric([*_names(job), bucket], seconds_)
    return family


def _names(job: Manifest) -> tuple[str, str]:
    return get_text(job, "metadata", "namespace"), get_text(job, "metadata", "name")


def _float(value: object) -> float | None:  # None: not a number
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
