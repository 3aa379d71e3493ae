"""Names and labels of a job's child objects.

They are functions of the job alone, never of time or chance, so that a retry is a no-op. Each child's name contains a
short hash of the job's UID. A recreated job of the same name therefore never matches the objects of the deleted one.
"""

import hashlib
from collections.abc import Container
from difflib import get_close_matches
from itertools import count

DOMAIN = "trainingjob.dev"
JOB_LABEL = f"{DOMAIN}/job"
UID_LABEL = f"{DOMAIN}/job-uid"
SLICE_OFFSET_LABEL = f"{DOMAIN}/slice-offset"
"""On JobSets and pods: the job-wide number of the JobSet's first slice. Slice number = this offset + JobSet job
index."""
JOB_INDEX_LABEL = "jobset.sigs.k8s.io/job-index"
"""Set by JobSet on Jobs and pods: the index of the slice within the JobSet."""
HOST_LABEL = "batch.kubernetes.io/job-completion-index"
"""Set by the Job controller on pods: the index of the host within the slice."""
TEMPLATE_HASH_ANNOTATION = f"{DOMAIN}/template-hash"
CA_CONFIG_MAP = "trainingjob-ca"
"""The ConfigMap of a namespace with the CA certificates of the rendezvous. The operator may change only this one."""
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""Controller of Kueue that runs pods in other clusters: of an AdmissionCheck, and `spec.managedBy` of a JobSet."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Kueue's label for the LocalQueue of an object."""
AVOIDED_NODES_ANNOTATION = f"{DOMAIN}/avoids"
"""On JobSets: the nodes that their pods must avoid."""
REPLICATED_JOB = "slice"
"""Name of the only replicated job of each JobSet: one child Job per slice."""
MAX_LABEL_LENGTH = 63
POD_SUFFIX_LENGTH = 6
"""The Job controller appends `-` and five characters to each pod name."""


def unused_name(name: str, taken: Container[str], max_length: int) -> str:
    """Return an unused variant of a name: the name with a numeric suffix, at most `max_length` characters long."""
    names = (f"{name[: max_length - len(str(number)) - 1].rstrip('-')}-{number}" for number in count(1))
    return next(candidate for candidate in names if candidate not in taken)


def nearest_names(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the closest matches of a name, best first, or all names if none is close."""
    return tuple(get_close_matches(name, names, n=3, cutoff=0.5)) or names


def uid_hash(uid: str) -> str:
    """Return the five characters that stand for a job's UID in the names of its children."""
    return hashlib.sha256(uid.encode()).hexdigest()[:5]


def base_jobset(job: str, uid: str) -> str:
    """Return the name of the JobSet that holds the job's minimum number of slices."""
    return f"{job}-{uid_hash(uid)}"


def slice_jobset(job: str, uid: str, slice_number: int) -> str:
    """Return the name of the JobSet that holds one elastic slice."""
    return f"{job}-{uid_hash(uid)}-x{slice_number}"


def child_job(jobset: str, index: int) -> str:
    """Return the name of the Job of one slice of a JobSet, by the index of the slice in the JobSet."""
    return f"{jobset}-{REPLICATED_JOB}-{index}"


def config_map(job: str, uid: str, revision: int, data_hash: str) -> str:
    """Return the name of the ConfigMap with the job's RunConfig, for the hash of its data.

    64 bits of the hash: other data with the same name cannot be found by trying.
    """
    return f"{job}-{uid_hash(uid)}-config-{revision}-{data_hash[:16]}"


def network_policy(job: str, uid: str) -> str:
    """Return the name of the NetworkPolicy of the job's pods."""
    return f"{job}-{uid_hash(uid)}-network"


def pod_group(jobset: str, num_pods: int) -> str:
    """Return the name of the PodGroup of a JobSet's pods. A PodGroup is immutable: each size has its own."""
    return f"{jobset}-gang-{num_pods}"


def preparation_job(job: str, uid: str) -> str:
    """Return the name of the Job that tokenizes the text. Its pods have shorter names than hosts."""
    return f"{job}-{uid_hash(uid)}-prep"


def longest_pod_name(job: str, num_slices: int, hosts_per_slice: int) -> str:
    """Return the longest pod name that the job can produce. `xxxxx` stands for the Job controller's suffix."""
    last = num_slices - 1
    elastic = f"{child_job(slice_jobset(job, '', last), 0)}-{hosts_per_slice - 1}-xxxxx"
    base = f"{child_job(base_jobset(job, ''), last)}-{hosts_per_slice - 1}-xxxxx"
    return max(elastic, base, key=len)
