"""Render settings: properties of the installation, as opposed to the job."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainingjob_api.images import IMAGE_PLATFORMS
from trainingjob_operator.core.manifests import Manifest


@dataclass(frozen=True)
class NetworkRules:
    """The administrator's rules for the network of jobs' pods, in the form of a NetworkPolicy's spec."""

    ingress: tuple[Manifest, ...] = ()
    """Further sources that pods accept, besides the pods of their job."""
    egress: tuple[Manifest, ...] | None = None
    """Destinations that pods may reach, besides the pods of their job. None: all."""


@dataclass(frozen=True)
class RenderSettings:
    """Settings of manifests that are the same for every job of one operator."""

    trainer_image: str
    """Trainer image of jobs without `runtime.image`, on platforms that `trainer_images` does not name."""
    rendezvous_url: str
    """Address to which agents report: `https://HOST:PORT`."""
    ca_pem: str
    """CA certificates of the rendezvous, in PEM. Empty: the rendezvous serves plain HTTP."""
    trainer_pull_policy: str = "IfNotPresent"
    """Image pull policy of jobs without `runtime.imagePullPolicy`."""
    elastic_workload_priority: str = ""
    """Kueue WorkloadPriorityClass of slices above a job's minimum. Empty: the same priority as the minimum."""
    trainer_images: Mapping[str, str] = field(default_factory=dict)
    """Trainer image of jobs without `runtime.image`, by the platform of the image: `cpu`, `tpu` or `cuda13`."""

    network: NetworkRules | None = None
    """Rules of the NetworkPolicy of each job. None: jobs have no policy."""

    config_map: str = ""
    """ConfigMap of the RunConfig that new pods of the job at hand mount. Empty: the first revision."""

    pod_group_version: str = ""
    """Version of the PodGroups by which the Kubernetes scheduler places all pods or none. Empty: there are none."""

    def image_for(self, platform: str) -> str:
        """Return the trainer image of jobs on a platform of JAX."""
        return self.trainer_images.get(IMAGE_PLATFORMS[platform], self.trainer_image)
