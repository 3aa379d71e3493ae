"""Assembly of the operator: its components, their startup order and their shutdown."""

import asyncio
import contextlib
import os
import socket
from importlib.metadata import version

from trainingjob_operator.render.render_settings import RenderSettings
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.authentication import PodAuthenticator
from trainingjob_operator.shell.check_pool import CheckPool
from trainingjob_operator.shell.cluster import KubernetesCluster
from trainingjob_operator.shell.connections import ConnectionLimits
from trainingjob_operator.shell.fenced_cluster import FencedCluster
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.kind_discovery import PodGroupDiscovery
from trainingjob_operator.shell.kinds import TRAINING_JOB
from trainingjob_operator.shell.leader_election import LeaderElection
from trainingjob_operator.shell.leader_label import LeaderLabel
from trainingjob_operator.shell.metrics import Metrics
from trainingjob_operator.shell.probes import MetricsEndpoint, health_app, serving_probes
from trainingjob_operator.shell.process import ListenPorts, read_catalog, serving
from trainingjob_operator.shell.queue_reader import QueueReader
from trainingjob_operator.shell.reconcile import Reconciler
from trainingjob_operator.shell.reflector import KINDS, RELIST_SECONDS, Reflector
from trainingjob_operator.shell.rendezvous import rendezvous_app
from trainingjob_operator.shell.scheduler import Scheduler
from trainingjob_operator.shell.scraper_access import ScraperAccess
from trainingjob_operator.shell.service_account_check import ServiceAccountCheck
from trainingjob_operator.shell.settings import Settings
from trainingjob_operator.shell.store import Store
from trainingjob_operator.shell.tls import CaBundleInjector, FolderSource, SecretSource, Tls
from trainingjob_operator.shell.watcher import Watcher

RENDEZVOUS_LIMITS = ConnectionLimits(total=16_384, unauthenticated=1024, unauthenticated_per_peer=256, waiting=8192)
"""An agent has one connection, briefly two. The limiter never evicts authenticated connections for new ones.

Connections that wait take up to 7 KiB each, and those with TLS about 30 KiB."""
MAX_LIST_SILENCE_SECONDS = 3 * RELIST_SECONDS
RECONCILE_DRAIN_SECONDS = 10.0
"""Shutdown timeout of running reconciles."""


class Operator:
    """One operator: all its components, connected."""

    def __init__(self, settings: Settings, api: Api) -> None:
        """Connect the components without starting them."""
        self._settings = settings
        own_certificates = settings.certificates is None
        source = (
            SecretSource(api, settings, api.clock.now)
            if settings.certificates is None
            else FolderSource(settings.certificates)
        )
        self.tls = Tls(source)
        self.ca_bundle_injector = (
            CaBundleInjector(api, settings.webhook_configuration, self.tls)
            if settings.webhook_enabled and own_certificates
            else None
        )
        self.store = Store(KINDS)
        self.metrics = Metrics(version("trainingjob"))
        api.on_error = self.metrics.record_api_error
        self._restart_counts = self.metrics.register_jobs(
            self.store[TRAINING_JOB], api.clock.now, lambda: self.lease.is_last_known_leader
        )
        self.scheduler = Scheduler(
            self._reconcile,
            self.metrics.record_reconcile,
            postpone=self._seconds_to_postpone,
            min_interval=self._min_interval,
            exists=lambda namespace, name: (namespace, name) in self.store[TRAINING_JOB],
        )
        self.metrics.register_queue(lambda: self.scheduler.queue_length)
        self.reflector = Reflector(api, self.store, settings.namespaces, self.scheduler.wake, self._restart_watcher)
        self.metrics.register_unreadable_namespaces(lambda: len(self.reflector.unreadable.names()))
        self.watcher = Watcher(
            api.configuration,
            settings.namespaces,
            lambda: (kind for kind in KINDS if kind not in self.reflector.missing_kinds),
            self.reflector.handle_event,
        )
        self.hub = Hub(asyncio.get_running_loop().time, self.scheduler.wake)
        now = api.clock.now
        self.checks = CheckPool(read_catalog(settings, self.metrics))
        self.cluster = KubernetesCluster(api, self.store, self.reflector, now, settings.node, settings.node_signals)
        accounts = ServiceAccountCheck(
            api,
            settings.webhook_configuration,
            is_enabled=settings.webhook_enabled,
            allows_unchecked=settings.unchecked_service_accounts,
        )
        fenced_cluster = FencedCluster(self.cluster, lambda: self.lease.is_leading)
        self._reconciler = Reconciler(
            fenced_cluster,
            self.hub,
            self._render_settings,
            now,
            clock_adjustment=lambda: api.clock.total_adjustment,
            check=self.checks.check,
            check_account=accounts.find_problem,
            read_queue=QueueReader(api).read,
            pod_group_versions=PodGroupDiscovery(api).versions,
        )
        self._lease_api = api.with_separate_pool()  # many other requests must not delay a Lease renewal
        self.lease = LeaderElection(
            self._lease_api,
            settings.namespace,
            settings.service,
            settings.pod or lease_identity(),
            self._on_leadership_change,
            now,
        )
        self.label = (
            LeaderLabel(api, settings.namespace, settings.pod, lambda: self.lease.is_leading, self.hub.reset_silence)
            if settings.pod
            else None
        )
        self._review_api = api.with_separate_pool()  # thousands of starting hosts must not delay reconciles
        self.authenticator = PodAuthenticator(self._review_api, self.store)
        self._scraper_access = ScraperAccess(self._review_api) if settings.metrics_authentication else None

    async def run(self, stop: asyncio.Event, ports: ListenPorts) -> None:
        """Run the operator until `stop` is set.

        Raises:
            OSError: a port is already in use.
            Exception: a component failed and cannot recover within this process.
        """
        async with self._lease_api, self._review_api, self.checks, contextlib.AsyncExitStack() as servers:
            health = health_app(self._health_problem, self._readiness_problem)
            endpoint = MetricsEndpoint(self.metrics.registry, self._scraper_access)
            await servers.enter_async_context(serving_probes(health, endpoint, ports, self.tls.context))
            rendezvous = rendezvous_app(
                self.hub,
                self.authenticator,
                is_leading=lambda: self.lease.is_last_known_leader,
                secret=lambda: self.tls.secret,
                moves_agents=lambda: self.lease.moves_agents,
            )
            await servers.enter_async_context(
                serving(rendezvous, ports.rendezvous, self.tls.context, RENDEZVOUS_LIMITS)
            )
            await self._run_parts(stop)

    async def _run_parts(self, stop: asyncio.Event) -> None:
        coroutines = [self.tls.run(), self.reflector.run(), self._watch()]
        if self.ca_bundle_injector:
            coroutines.append(self.ca_bundle_injector.run())
        if self.label:
            coroutines.append(self.label.run())
        leadership = asyncio.create_task(self._run_leader_election())
        tasks = [leadership, *(asyncio.create_task(coroutine) for coroutine in coroutines)]
        stop_task = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stop_task, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.scheduler.stop(), RECONCILE_DRAIN_SECONDS)
            errors = [error for task in tasks if task.done() and (error := task.exception())]
            leadership.cancel()  # it would acquire the released Lease again
            await asyncio.wait([leadership])
            await self.lease.release()
            for task in (stop_task, *tasks):
                task.cancel()
            await asyncio.gather(stop_task, *tasks, return_exceptions=True)
        if errors:
            raise errors[0]

    async def _watch(self) -> None:
        await self.reflector.synced.wait()  # the first list finds missing kinds
        await self.watcher.run()

    async def _run_leader_election(self) -> None:
        await asyncio.gather(self.reflector.synced.wait(), self.tls.ready.wait())  # a leader must be able to work
        await self.lease.run()

    async def _reconcile(self, namespace: str, name: str) -> float | None:
        return await self._reconciler.reconcile(namespace, name)

    def _seconds_to_postpone(self, namespace: str, name: str) -> float:
        return self._reconciler.large_jobs.seconds_to_postpone(namespace, name)

    def _min_interval(self, namespace: str, name: str) -> float:
        return self._reconciler.large_jobs.min_interval(namespace, name)

    def _restart_watcher(self) -> None:
        self.watcher.restart()

    def _on_leadership_change(self, is_leading: bool) -> None:  # noqa: FBT001  # the lease's callback
        self.metrics.leader.set(is_leading)
        if is_leading:
            self.hub.reset_silence()  # the fault that delayed the renewal may also have blocked heartbeats
            if not self.lease.is_uninterrupted:
                self.hub.clear()  # another leader may have published other directives in between
                self._restart_counts()  # and has counted the restarts until now
            if self.label:
                self.label.wake()
            self.scheduler.resume()
        else:
            self.scheduler.pause()

    def _render_settings(self) -> RenderSettings:
        return RenderSettings(
            trainer_image=self._settings.trainer_image,
            rendezvous_url=self._settings.rendezvous_url,
            ca_pem=self.tls.bundle,
            trainer_pull_policy=self._settings.trainer_pull_policy,
            elastic_workload_priority=self._settings.elastic_workload_priority,
            trainer_images=self._settings.trainer_images,
            network=self._settings.job_network,
        )

    def _health_problem(self) -> str:
        silence = self.reflector.seconds_since_list
        return f"no list of objects succeeded for {silence:.0f} s" if silence > MAX_LIST_SILENCE_SECONDS else ""

    def _readiness_problem(self) -> str:
        if not self.tls.ready.is_set():
            return "there is no certificate yet"
        if not self.reflector.synced.is_set():
            return "not all objects are listed yet"
        if not self.lease.is_last_known_leader and not self.lease.other_holder:
            return "there is no leader yet"
        return ""


def lease_identity() -> str:
    """Return the Lease holder name outside a cluster: host name and process ID."""
    return f"{socket.gethostname()}-{os.getpid()}"
