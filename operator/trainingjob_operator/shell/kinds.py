"""Kubernetes kinds that the operator reads and writes, with their API paths."""

from dataclasses import dataclass

from trainingjob_api.spec.job import API_VERSION, KIND, PLURAL
from trainingjob_operator.core.pod_groups import API_GROUP, KNOWN_VERSIONS
from trainingjob_operator.shell.interfaces import Manifest


@dataclass(frozen=True)
class Kind:
    """One kind: its API version, its name, and its plural name in API paths."""

    api_version: str
    name: str
    plural: str
    is_namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the API path of an object. Without a name: of all objects of the namespace, or of the cluster."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        parts = [root, f"namespaces/{namespace}" if namespace and self.is_namespaced else "", self.plural]
        return "/".join(part for part in (*parts, name, subresource) if part)


TRAINING_JOB = Kind(API_VERSION, KIND, PLURAL)
JOB_SET = Kind("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets")
JOB = Kind("batch/v1", "Job", "jobs")
POD = Kind("v1", "Pod", "pods")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SECRET = Kind("v1", "Secret", "secrets")
EVENT = Kind("v1", "Event", "events")
NODE = Kind("v1", "Node", "nodes", is_namespaced=False)
WORKLOAD = Kind("kueue.x-k8s.io/v1beta2", "Workload", "workloads")
LOCAL_QUEUE = Kind("kueue.x-k8s.io/v1beta2", "LocalQueue", "localqueues")
CLUSTER_QUEUE = Kind("kueue.x-k8s.io/v1beta2", "ClusterQueue", "clusterqueues", is_namespaced=False)
ADMISSION_CHECK = Kind("kueue.x-k8s.io/v1beta2", "AdmissionCheck", "admissionchecks", is_namespaced=False)
POD_GROUPS = tuple(Kind(f"{API_GROUP}/{version}", "PodGroup", "podgroups") for version in KNOWN_VERSIONS)
"""PodGroups in each version that the operator knows, the newest first."""
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
TOKEN_REVIEW = Kind("authentication.k8s.io/v1", "TokenReview", "tokenreviews", is_namespaced=False)
ACCESS_REVIEW = Kind("authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", is_namespaced=False)
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
WEBHOOK_CONFIGURATION = Kind(
    "admissionregistration.k8s.io/v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    is_namespaced=False,
)

CHILDREN = (JOB_SET, JOB, POD, CONFIG_MAP)
"""Kinds of a job's children, which carry its UID label."""
_BY_NAME = {
    (kind.api_version, kind.name): kind
    for kind in (TRAINING_JOB, *CHILDREN, NETWORK_POLICY, *POD_GROUPS, SECRET, EVENT, NODE, LEASE)
}


def kind_of(manifest: Manifest) -> Kind:
    """Return the kind of a manifest.

    Raises:
        KeyError: the operator does not use that kind.
    """
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]
