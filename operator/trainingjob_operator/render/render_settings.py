"""Render settings: properties of the installation, as opposed to the job."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RenderSettings:
    """Settings of manifests that are the same for every job of one operator."""

    trainer_image: str
    """Trainer image of jobs without `runtime.image`."""
    rendezvous_url: str
    """Address to which agents report: `https://HOST:PORT`."""
    ca_pem: str
    """CA certificates of the rendezvous, in PEM. Empty: the rendezvous serves plain HTTP."""
    trainer_pull_policy: str = "IfNotPresent"
    """Image pull policy of jobs without `runtime.imagePullPolicy`."""
    elastic_workload_priority: str = ""
    """Kueue WorkloadPriorityClass of slices above a job's minimum. Empty: the same priority as the minimum."""
