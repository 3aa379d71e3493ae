"""Prometheus metrics of the operator, of its webhook and of every job.

Each scrape reads a job's metrics from its status, so the metrics of a deleted job disappear. Labels are object names or
fixed enumerations, so that users cannot cause a high cardinality.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trainingjob_operator.core.diagnose.bad_nodes import MIN_FAULTS
from trainingjob_operator.core.goodput import Bucket
from trainingjob_operator.core.manifests import Manifest, get_int, get_text, get_value, iter_items
from trainingjob_operator.core.times import parse_time
from trainingjob_operator.shell import metric_declarations as declarations
from trainingjob_operator.shell.added_values import InvalidRow
from trainingjob_operator.shell.metric_declarations import MetricDeclaration
from trainingjob_operator.shell.store import KindStore

RECONCILE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
REVIEW_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)
GAUGES = (
    (declarations.STEP, ("progress", "step")),
    (declarations.STEPS, ("progress", "of")),
    (declarations.LOSS, ("progress", "loss")),
    (declarations.TOKENS_PER_SECOND, ("progress", "tokensPerSecond")),
    (declarations.STEP_SECONDS, ("progress", "stepSeconds")),
    (declarations.MFU_RATIO, ("progress", "mfu")),
    (declarations.DATA_LOADING_RATIO, ("progress", "dataLoadingShare")),
    (declarations.SKIPPED_STEPS, ("progress", "skipped")),
    (declarations.SAVE_SECONDS, ("progress", "saveSeconds")),
    (declarations.GOODPUT_RATIO, ("goodput", "ratio")),
    (declarations.STRAGGLER_RATIO, ("straggler", "ratio")),
)
"""Metrics whose value is a number of the job's status, with its path there."""
FAILING = (
    (declarations.CHECKPOINT_FAILING, "failingSaves"),
    (declarations.BACKUP_FAILING, "failingCopies"),
    (declarations.EXPORT_FAILING, "failingExports"),
)
"""Metrics that are 1 while the status of a job with a world has a field."""
PHASE_NEW = "New"
"""Phase label of a job without a status."""


class ProcessMetrics:
    """Metrics of any process of the operator's program, in `registry`."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, CPU, open files
        self._invalid_rows = {table: self._make_gauge(metric) for table, metric in declarations.REFUSED_ROWS.items()}
        self._make_gauge(declarations.BUILD_INFO).labels(version).set(1)

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
        self.review_seconds = self._make_histogram(declarations.WEBHOOK_DURATION, REVIEW_BUCKETS)

    def record_review(self, seconds: float, is_allowed: bool) -> None:  # noqa: FBT001  # the webhook's callback
        """Record one webhook review."""
        self.review_seconds.labels(str(is_allowed).lower()).observe(seconds)


class Metrics(ProcessMetrics):
    """Metrics of the operator. `registry` holds them and the job metrics."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.reconcile_seconds = self._make_histogram(declarations.RECONCILE_DURATION, RECONCILE_BUCKETS)
        errors = declarations.RECONCILE_ERRORS
        self.reconcile_errors = Counter(errors.name, errors.meaning, errors.labels, registry=self.registry)
        self.leader = self._make_gauge(declarations.LEADING)
        failed = declarations.API_ERRORS
        self.api_errors = Counter(failed.name, failed.meaning, failed.labels, registry=self.registry)
        self._queue_length = self._make_gauge(declarations.QUEUE_LENGTH)
        self._unreadable_namespaces = self._make_gauge(declarations.UNREADABLE_NAMESPACES)

    def record_reconcile(self, seconds: float, has_failed: bool) -> None:  # noqa: FBT001  # the scheduler's callback
        """Record one reconcile."""
        self.reconcile_seconds.observe(seconds)
        if has_failed:
            self.reconcile_errors.inc()

    def record_api_error(self, code: str) -> None:
        """Record one failed request to the API server, by HTTP status, or `unreachable`."""
        self.api_errors.labels(code).inc()

    def register_queue(self, measure: Callable[[], float]) -> None:
        """Let each scrape measure the length of the queue of reconciles."""
        self._queue_length.set_function(measure)

    def register_unreadable_namespaces(self, count: Callable[[], float]) -> None:
        """Let each scrape count the watched namespaces that the operator may not list."""
        self._unreadable_namespaces.set_function(count)

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
        self._counts: dict[str, _Counts] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        if not self._is_leading():
            return
        jobs = tuple(self._jobs)
        yield _jobs_by_phase(jobs)
        for metric, path in GAUGES:
            yield _gauge(metric, jobs, path)
        yield _slices(jobs)
        yield _max_slices(jobs)
        yield _bad_nodes(jobs)
        yield _last_commits(jobs)
        for metric, field in FAILING:
            yield _failing(metric, jobs, field)
        yield _goodput_seconds(jobs)
        yield from self._count_attempts(jobs)

    def _count_attempts(self, jobs: Iterable[Manifest]) -> tuple[Metric, Metric]:
        restarts, lost_steps = _counter_family(declarations.RESTARTS), _counter_family(declarations.LOST_STEPS)
        counted = {}
        for job in jobs:
            uid = get_text(job, "metadata", "uid")
            counts = counted[uid] = self._counts.get(uid) or self._start_counts(job)
            counts.update(job)
            for reason, count in counts.by_reason.items():
                restarts.add_metric([*_names(job), reason], count)
            lost_steps.add_metric(_names(job), counts.lost_steps)
        self._counts = counted  # drops the counts of deleted jobs
        return restarts, lost_steps

    def _start_counts(self, job: Manifest) -> "_Counts":
        """Return the counts of a job. Those of a job that is older than this process leave out all known attempts."""
        created = parse_time(get_text(job, "metadata", "creationTimestamp"))
        if created is not None and created >= self._since:
            return _Counts(0, 0)
        return _Counts(_newest_with(job, "cause"), _newest_with(job, "lostSteps"))


class _Counts:
    """Counts over the attempts of one job: ended worlds by reason, and lost steps."""

    def __init__(self, last_end_generation: int, last_loss_generation: int) -> None:
        """Count only ends and lost steps of later generations."""
        self.by_reason: dict[str, int] = {}
        self.lost_steps = 0
        self._last_end_generation = last_end_generation
        self._last_loss_generation = last_loss_generation

    def update(self, job: Manifest) -> None:
        """Count worlds that have ended, and worlds that have trained steps again, since the last update."""
        for attempt in iter_items(job, "status", "attempts"):
            generation, reason = get_int(attempt, "generation") or 0, get_text(attempt, "cause", "reason")
            if reason and generation > self._last_end_generation:
                self._last_end_generation = generation
                self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
            lost = get_int(attempt, "lostSteps")
            if lost is not None and generation > self._last_loss_generation:
                self._last_loss_generation = generation
                self.lost_steps += lost


def _newest_with(job: Manifest, field: str) -> int:
    """Return the newest generation whose attempt has a field; 0 without one."""
    attempts = iter_items(job, "status", "attempts")
    return max((get_int(attempt, "generation") or 0 for attempt in attempts if field in attempt), default=0)


def _counter_family(metric: MetricDeclaration) -> CounterMetricFamily:
    return CounterMetricFamily(metric.name, metric.meaning, labels=metric.labels)


def _jobs_by_phase(jobs: Iterable[Manifest]) -> Metric:
    family = _family(declarations.JOBS)
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
    family = _family(declarations.SLICES)
    for job in jobs:
        slices = get_value(job, "status", "world", "slices")
        if isinstance(slices, list):
            family.add_metric(_names(job), len(slices))
    return family


def _max_slices(jobs: Iterable[Manifest]) -> Metric:
    family = _family(declarations.WANTED_SLICES)
    for job in jobs:
        slices = get_value(job, "spec", "slices")
        if (count := get_int(slices, "count") or get_int(slices, "max")) is not None:
            family.add_metric(_names(job), count)
    return family


def _bad_nodes(jobs: Iterable[Manifest]) -> Metric:
    family = _family(declarations.BAD_NODES)
    for job in jobs:
        faults = [get_int(node, "faults") or 0 for node in iter_items(job, "status", "nodes")]
        family.add_metric(_names(job), sum(count >= MIN_FAULTS for count in faults))
    return family


def _last_commits(jobs: Iterable[Manifest]) -> Metric:
    family = _family(declarations.LAST_COMMIT)
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
    family = _family(declarations.GOODPUT_SECONDS)
    buckets = {bucket.value for bucket in Bucket}
    for job in jobs:
        seconds = get_value(job, "status", "goodput", "seconds")
        for bucket, value in (seconds if isinstance(seconds, dict) else {}).items():
            if bucket in buckets and (duration := _float(value)) is not None:
                family.add_metric([*_names(job), bucket], duration)
    return family


def _names(job: Manifest) -> tuple[str, str]:
    return get_text(job, "metadata", "namespace"), get_text(job, "metadata", "name")


def _float(value: object) -> float | None:  # None: not a number
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
