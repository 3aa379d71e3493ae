"""Ownership: which of the objects with a job's labels belong to the job.

Any client can write labels, but only controllers write the owner chain from pod to Job to JobSet to TrainingJob. The
Job of the preparation phase belongs to the TrainingJob itself. An object outside of this chain represents no host,
blocks no repair and is never deleted.
"""

from collections.abc import Iterable
from dataclasses import replace

from trainingjob_operator.core.config_maps import select_config_maps
from trainingjob_operator.core.manifests import Children, Manifest, get_text, owner_uid
from trainingjob_operator.core.names import preparation_job


def filter_owned(children: Children, name: str, uid: str) -> Children:
    """Return the children without Jobs, pods and ConfigMaps of other owners.

    Foreign JobSets stay, because they may occupy a name that the job needs. Pods whose Job is gone stay as orphans: the
    garbage collector deletes them, but they may be stuck on a node.
    """
    jobsets = {_uid(jobset) for jobset in children.jobsets if owner_uid(jobset) == uid}
    jobs = tuple(job for job in children.jobs if owner_uid(job) in jobsets)
    preparation = _find_preparation(children.jobs, name, uid)
    own = {_uid(job) for job in jobs}
    known = {_uid(job) for job in children.jobs} | {""}
    owned = [(pod, owner_uid(pod)) for pod in children.pods]  # once: there may be thousands
    orphans = frozenset(_uid(pod) for pod, owner in owned if owner not in known)
    return replace(
        children,
        jobs=jobs,
        pods=tuple(pod for pod, owner in owned if owner in own or owner not in known),
        preparation=preparation,
        preparation_pods=tuple(pod for pod, owner in owned if preparation and owner == _uid(preparation)),
        orphans=orphans,
        config_maps=select_config_maps(children.config_maps, name, uid),
    )


def _find_preparation(jobs: Iterable[Manifest], name: str, uid: str) -> Manifest | None:  # None: it does not exist
    expected = preparation_job(name, uid)
    return next((job for job in jobs if get_text(job, "metadata", "name") == expected and owner_uid(job) == uid), None)


def _uid(manifest: Manifest) -> str:
    return get_text(manifest, "metadata", "uid")
