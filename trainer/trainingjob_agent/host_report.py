"""The agent's report: its complete state each time, so a lost report loses nothing."""

from dataclasses import dataclass

from trainingjob_agent.host import UNREAPED_FAILURE
from trainingjob_agent.hot_standby import may_host
from trainingjob_agent.processes import Vitals
from trainingjob_agent.state import Host, State
from trainingjob_api.protocol import HostReport, Phase


@dataclass(frozen=True)
class HostIdentity:
    """The host's position in its job, and the id of the agent process."""

    pod: str
    slice: int
    host: int
    address: str
    instance: str


def make_report(
    host: Host,
    identity: HostIdentity,
    state: State,
    port: int,
    hot_standby_port: int = 0,
    moved_mebibytes: int | None = None,
    vitals: Vitals | None = None,
) -> HostReport:
    """Return the report of a state.

    `port` is a free port for a coordinator, `hot_standby_port` one for the coordinator of a hot standby world.
    `moved_mebibytes` is what the child in a world has read and written. `vitals` are those of that child, or else of
    the standby. None: no such process, or unknown.
    """
    active, hot_standby = state.active, state.hot_standby
    return HostReport(
        job_uid=host.job_uid,
        pod=identity.pod,
        pod_uid=host.pod_uid,
        slice=identity.slice,
        host=identity.host,
        address=identity.address,
        instance=identity.instance,
        port=port,
        standby=bool(state.standby and state.standby.ready),
        shadow_port=(hot_standby_port or None) if may_host(host, state) else None,
        shadow=hot_standby.world.shadow if hot_standby and hot_standby.ready and hot_standby.world else "",
        broken=state.broken or (UNREAPED_FAILURE if state.unreaped is not None else None),
        unreaped=state.unreaped is not None,
        generation=state.started,
        phase=active.phase if active else Phase.IDLE,
        progress=active.progress if active else None,
        restored=active.restored if active else None,
        total_steps=active.total_steps if active else None,
        tier=active.tier if active else "durable",
        missing_lineage=active.missing_lineage if active else (),
        initialized_from=active.initialized_from if active else "",
        committed=active.committed if active else None,
        failed_save=active.failed_save if active else None,
        copied=active.copied if active else None,
        failed_copy=active.failed_copy if active else None,
        exported=active.exported if active else None,
        failed_export=active.failed_export if active else None,
        damaged=active.damaged if active else (),
        failure=active.failure if active else None,
        data=active.data if active else None,
        preparation=active.preparation if active and active.phase is Phase.PREPARING else None,
        phase_seconds={phase: round(longest, 1) for phase, longest in state.phase_seconds.items()},
        moved_mebibytes=moved_mebibytes,
        stopped=vitals is not None and vitals.stopped,
        cpu_seconds=vitals.cpu_seconds if vitals else None,
        entered=active.entered if active else 0,
        evidence=active.evidence if active else None,
        drill_id=state.reported_drill,
        drill_error=state.drill_error,
    )


def is_urgent(new: HostReport, old: HostReport | None) -> bool:
    """Return whether a report must be sent at once. Mere progress of a child waits for the next report."""
    return old is None or _without_progress(new) != _without_progress(old)


def _without_progress(report: HostReport) -> HostReport:
    changes_often = {"progress": None, "preparation": None, "moved_mebibytes": None, "cpu_seconds": None, "entered": 0}
    return report.model_copy(update=changes_often)
