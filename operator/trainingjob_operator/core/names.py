"""Names and labels of a job's objects: functions of the job, never of time or chance, so that a retry is a no-op.

Each child's name carries a short hash of the job's UID: a job that was deleted and made anew never meets the objects of
its namesake.
"""

import hashlib
from collections.abc import Container
from difflib import get_close_matches
from itertools import count

DOMAIN = "trainingjob.dev"
JOB_LABEL = f"{DOMAIN}/job"
UID_LABEL = f"{DOMAIN}/job-uid"
SLICE_OFFSET_LABEL = f"{DOMAIN}/slice-offset"
"""On JobSets and pods: the job-wide number of the JobSet's first slice. Slice = this + JobSet's job index."""
JOB_INDEX_LABEL = "jobset.sigs.k8s.io/job-index"
"""JobSet's own, on Jobs and pods: which of the JobSet's slices."""
HOST_LABEL = "batch.kubernetes.io/job-completion-index"
"""The Job controller's own, on pods: which host of the slice."""
TEMPLATE_HASH_ANNOTATION = f"{DOMAIN}/template-hash"
AVOIDS_ANNOTATION = f"{DOMAIN}/avoids"
"""On JobSets: the nodes that their pods must not lie on."""
REPLICATED_JOB = "slice"
"""Name of the one replicated job of each JobSet: one child Job a slice."""
MAX_LABEL = 63
POD_SUFFIX = 6
"""The Job controller appends `-` and five characters to each pod's name."""


def free_name(name: str, taken: Container[str], most: int) -> str:
    """Return a name like one that is taken: a number at its end, and at most so many characters."""
    names = (f"{name[: most - len(str(number)) - 1].rstrip('-')}-{number}" for number in count(1))
    return next(one for one in names if one not in taken)


def nearest_names(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names most like one, best first; all of them where none is like it."""
    return tuple(get_close_matches(name, names, n=3, cutoff=0.5)) or names


def uid_hash(uid: str) -> str:
    """Return five characters that stand for a job's UID in the names of its children."""
    return hashlib.sha256(uid.encode()).hexdigest()[:5]


def base_jobset(job: str, uid: str) -> str:
    """Return the name of the JobSet that holds the job's minimum of slices."""
    return f"{job}-{uid_hash(uid)}"


def slice_jobset(job: str, uid: str, slice_number: int) -> str:
    """Return the name of the JobSet that holds one elastic slice."""
    return f"{job}-{uid_hash(uid)}-x{slice_number}"


def config_map(job: str, uid: str) -> str:
    """Return the name of the ConfigMap with the job's RunConfig."""
    return f"{job}-{uid_hash(uid)}-config"


def longest_pod_name(job: str, num_slices: int, hosts_per_slice: int) -> str:
    """Return the longest pod name that the job can come to; five `x` stand for the Job controller's suffix."""
    last = num_slices - 1
    elastic = f"{slice_jobset(job, '', last)}-{REPLICATED_JOB}-0-{hosts_per_slice - 1}-xxxxx"
    base = f"{base_jobset(job, '')}-{REPLICATED_JOB}-{last}-{hosts_per_slice - 1}-xxxxx"
    return max(elastic, base, key=len)
