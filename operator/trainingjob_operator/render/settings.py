"""What manifests need to know of the installation, as opposed to the job."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RenderSettings:
    """The same for every job that one operator runs."""

    trainer_image: str
    """Image of jobs that name none."""
    rendezvous_url: str
    """Where agents report: `https://HOST:PORT`."""
    ca_pem: str
    """Certificates, in PEM, that agents trust the rendezvous by."""
    trainer_pull_policy: str = "IfNotPresent"
    """When to pull the image, for jobs that do not say."""
    elastic_workload_priority: str = ""
    """Kueue WorkloadPriorityClass of slices above a job's minimum. Empty: they queue like the minimum."""
