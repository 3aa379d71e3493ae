"""The NetworkPolicy of a job's pods: they accept connections only from each other.

Between hosts, JAX's coordination service and the collectives on CPUs use plaintext without authentication. The policy
keeps all other pods of the cluster away from these ports, if the cluster's network enforces policies.
"""

from trainingjob_api.world import JobIdentity
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import UID_LABEL, network_policy
from trainingjob_operator.render.metadata import job_labels, owner_references
from trainingjob_operator.render.render_settings import NetworkRules


def render_network_policy(job: JobIdentity, rules: NetworkRules) -> Manifest:
    """Return the NetworkPolicy of a job. Egress is open unless `rules` restrict it."""
    pods = {"matchLabels": {UID_LABEL: job.uid}}
    peers = [{"podSelector": pods}]
    spec: Manifest = {
        "podSelector": pods,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": peers}, *rules.ingress],
    }
    if rules.egress is not None:
        spec |= {"policyTypes": ["Ingress", "Egress"], "egress": [{"to": peers}, *rules.egress]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": network_policy(job.name, job.uid),
            "namespace": job.namespace,
            "labels": job_labels(job),
            "ownerReferences": owner_references(job),
        },
        "spec": spec,
    }
