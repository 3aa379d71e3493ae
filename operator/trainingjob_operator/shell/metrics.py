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
from trainingjob_operator.shell.attempt_counts import JobCounts
from trainingjob_operator.shell.metric_declarations import MetricDeclaration
from trainingjob_operator.shell.present_world import (
    count_present_goodput,
    count_present_slices,
    find_phase,
    is_training,
)
from trainingjob_operator.shell.store import KindStore

RECONCILE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
REVIEW_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)
GAUGES = (
    (declarations.STEP, ("progress", "step")),
    (declarations.STEPS, ("progress", "of")),
    (declarations.LOSS, ("progress", "loss")),
    (declarations.SKIPPED_STEPS, ("progress", "skipped")),
    (declarations.SAVE_SECONDS, ("progress", "saveSeconds")),
)
"""Metrics whose value is a number of the job's status, with its path there."""
PREPARATION_GAUGES = (
    (declarations.PREPARED_BYTES, ("preparation", "doneBytes")),
    (declarations.PREPARED_TOKENS, ("preparation", "tokens")),
)
"""The same for jobs that are not over. The status of a job that failed while it tokenized keeps what it had done."""
SPEED_GAUGES = (
    (declarations.TOKENS_PER_SECOND, ("progress", "tokensPerSecond")),
    (declarations.STEP_SECONDS, ("progress", "stepSeconds")),
    (declarations.MFU_RATIO, ("progress", "mfu")),
    (declarations.DATA_LOADING_RATIO, ("progress", "dataLoadingShare")),
    (declarations.STRAGGLER_RATIO, ("straggler", "ratio")),
)
"""The same for jobs that train. Other jobs have no speed, and their status keeps that of their last world."""
FAILING = (
    (declarations.CHECKPOINT_FAILING, "failingSaves"),
    (declarations.BACKUP_FAILING, "failingCopies"),
    (declarations.EXPORT_FAILING, "failingExports"),
)
"""Metrics that are 1 while the status of a job with a world has a field."""


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

    def register_jobs(
        self, jobs: KindStore, now: Callable[[], datetime], is_leading: Callable[[], bool] = lambda: True
    ) -> Callable[[], None]:
        """Register the metrics of all jobs. The returned function begins the counts again, for a new leadership.

        Only the leader has them: sums over all replicas would count each job twice.
        """
        collector = JobCollector(jobs, now, is_leading)
        self.registry.register(collector)
        return collector.counts.begin


class JobCollector(Collector):
    """Collects the metrics of jobs from their statuses."""

    def __init__(self, jobs: KindStore, now: Callable[[], datetime], is_leading: Callable[[], bool]) -> None:
        """Read jobs from the store."""
        self.counts = JobCounts(jobs, now)
        self._is_leading = is_leading
        self._jobs = jobs
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        if not self._is_leading():
            return
        jobs = tuple(self._jobs)
        yield _jobs_by_phase(jobs)
        yield _phases(jobs)
        for metric, path in GAUGES:
            yield _gauge(metric, jobs, path)
        unfinished = tuple(job for job in jobs if not get_text(job, "status", "completionTime"))
        for metric, path in PREPARATION_GAUGES:
            yield _gauge(metric, unfinished, path)
        slices = tuple((job, count_present_slices(job)) for job in jobs)
        with_world = tuple(job for job, count in slices if count)
        training = tuple(job for job in with_world if is_training(job))
        for metric, path in SPEED_GAUGES:
            yield _gauge(metric, training, path)
        yield _slices(slices)
        yield _max_slices(jobs)
        yield _bad_nodes(jobs, self._now())
        yield _times(declarations.LAST_COMMIT, jobs, "checkpoint", "time")
        yield _times(declarations.COMPLETION, jobs, "completionTime")
        for metric, field in FAILING:
            yield _failing(metric, with_world, field)
        yield from _goodput(jobs, self._now())
        yield from self._attempts(jobs)

    def _attempts(self, jobs: Iterable[Manifest]) -> tuple[Metric, Metric]:
        restarts, lost_steps = _counter_family(declarations.RESTARTS), _counter_family(declarations.LOST_STEPS)
        for job, counts in self.counts.update(jobs):
            for reason, count in counts.restarts.items():
                restarts.add_metric([*_names(job), reason], count)
            lost_steps.add_metric(_names(job), counts.lost_steps)
        return restarts, lost_steps


def _counter_family(metric: MetricDeclaration) -> CounterMetricFamily:
    return CounterMetricFamily(metric.name, metric.meaning, labels=metric.labels)


def _jobs_by_phase(jobs: Iterable[Manifest]) -> Metric:
    family = _family(declarations.JOBS)
    counts: dict[tuple[str, str], int] = {}
    for job in jobs:
        key = (get_text(job, "metadata", "namespace"), find_phase(job))
        counts[key] = counts.get(key, 0) + 1
    for key, count in counts.items():
        family.add_metric(key, count)
    return family


def _phases(jobs: Iterable[Manifest]) -> Metric:
    family = _family(declarations.PHASE)
    for job in jobs:
        family.add_metric([*_names(job), find_phase(job)], 1)
    return family


def _family(metric: MetricDeclaration) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)


def _gauge(metric: MetricDeclaration, jobs: Iterable[Manifest], path: tuple[str, ...]) -> Metric:
    family = _family(metric)
    for job in jobs:
        if (value := _float(get_value(job, "status", *path))) is not None:
            family.add_metric(_names(job), value)
    return family


def _slices(slices: Iterable[tuple[Manifest, int]]) -> Metric:
    family = _family(declarations.SLICES)
    for job, count in slices:
        family.add_metric(_names(job), count)
    return family


def _max_slices(jobs: Iterable[Manifest]) -> Metric:
    family = _family(declarations.WANTED_SLICES)
    for job in jobs:
        slices = get_value(job, "spec", "slices")
        if (count := get_int(slices, "count") or get_int(slices, "max")) is not None:
            family.add_metric(_names(job), count)
    return family


def _bad_nodes(jobs: Iterable[Manifest], now: datetime) -> Metric:
    """Return the bad nodes. The status of a job that is over, or whose spec is invalid, keeps expired records."""
    family = _family(declarations.BAD_NODES)
    for job in jobs:
        nodes = [node for node in iter_items(job, "status", "nodes") if _is_unexpired(node, now)]
        family.add_metric(_names(job), sum((get_int(node, "faults") or 0) >= MIN_FAULTS for node in nodes))
    return family


def _is_unexpired(node: Manifest, now: datetime) -> bool:
    until = parse_time(get_text(node, "until"))
    return until is None or until > now


def _times(metric: MetricDeclaration, jobs: Iterable[Manifest], *path: str) -> Metric:
    family = _family(metric)
    for job in jobs:
        if (time := parse_time(get_text(job, "status", *path))) is not None:
            family.add_metric(_names(job), time.timestamp())
    return family


def _failing(metric: MetricDeclaration, jobs: Iterable[Manifest], field: str) -> Metric:
    family = _family(metric)
    for job in jobs:
        family.add_metric(_names(job), float(bool(get_value(job, "status", field))))
    return family


def _goodput(jobs: Iterable[Manifest], now: datetime) -> tuple[Metric, Metric]:
    """Return the goodput ratio, and the seconds by bucket.

    The seconds are a gauge, since time that turns out to be lost moves to another bucket. A status that only grows
    older is not written, so the seconds since it was written are added here.
    """
    ratios, seconds = _family(declarations.GOODPUT_RATIO), _family(declarations.GOODPUT_SECONDS)
    buckets = {bucket.value for bucket in Bucket}
    for job in jobs:
        spent = count_present_goodput(job, now)
        if not spent.seconds:
            continue
        ratios.add_metric(_names(job), spent.ratio)
        # A job that has not trained has 0 seconds of training: alerts compare them with those of an hour ago.
        for bucket, value in {Bucket.TRAINING.value: 0.0, **spent.seconds}.items():
            if bucket in buckets:
                seconds.add_metric([*_names(job), bucket], value)
    return ratios, seconds


def _names(job: Manifest) -> tuple[str, str]:
    return get_text(job, "metadata", "namespace"), get_text(job, "metadata", "name")


def _float(value: object) -> float | None:  # None: not a number
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
