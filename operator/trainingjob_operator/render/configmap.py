"""The ConfigMaps of pods: the RunConfig of a job, and the CA certificates that the pods of a namespace trust.

The RunConfig is immutable, see `core/config_maps.py`: what may change while a job runs is part of each world. Its
ConfigMap also has the hash of the job's NetworkPolicy. The operator applies a policy before it creates the ConfigMap
with its hash, so it needs no watch of policies to notice a change of the rules.

The operator renews the certificates while jobs run, and the kubelet refreshes the files of their pods. So all jobs of a
namespace share one ConfigMap with a fixed name, to which the operator's right to change ConfigMaps is limited.
"""

import hashlib
import json

from trainingjob_api.world import JobIdentity, RunConfig
from trainingjob_operator.core.config_maps import hash_data
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import CA_CONFIG_MAP, UID_LABEL, config_map
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.run_config import build_run_config
from trainingjob_operator.render.metadata import MANAGED_BY_LABEL, MANAGER, job_labels, owner_references
from trainingjob_operator.render.network_policy import render_network_policy
from trainingjob_operator.render.render_settings import RenderSettings

RUN_CONFIG_KEY = "run.json"
CA_KEY = "ca.crt"
NETWORK_POLICY_KEY = "network-policy.sha256"


def render_config_map(config: RunConfig, settings: RenderSettings, revision: int = 1) -> Manifest:
    """Return the ConfigMap of a job with its RunConfig as JSON.

    The JSON omits default values. The API server sets defaults of new fields, which are unknown to an older trainer.
    An older trainer therefore rejects a config only if the job uses a new field.
    """
    data = {RUN_CONFIG_KEY: config.model_dump_json(by_alias=True, exclude_defaults=True, indent=2) + "\n"}
    if settings.network:
        policy = json.dumps(render_network_policy(config.job, settings.network), sort_keys=True)
        data[NETWORK_POLICY_KEY] = hashlib.sha256(policy.encode()).hexdigest()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map(config.job.name, config.job.uid, revision, hash_data({"data": data})),
            "namespace": config.job.namespace,
            "labels": job_labels(config.job),
            "ownerReferences": owner_references(config.job),
        },
        "data": data,
        "immutable": True,
    }


def find_config_map(job: JobIdentity, plan: Plan, settings: RenderSettings) -> str:
    """Return the name of the ConfigMap that new pods of a job mount."""
    return settings.config_map or str(render_config_map(build_run_config(job, plan), settings)["metadata"]["name"])


def render_ca_config_map(namespace: str, ca_pem: str) -> Manifest:
    """Return the ConfigMap of a namespace with the CA certificates of the rendezvous, in PEM.

    The empty UID selects it for the operator's watch, but not as an object of a job.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": CA_CONFIG_MAP,
            "namespace": namespace,
            "labels": {UID_LABEL: "", MANAGED_BY_LABEL: MANAGER},
        },
        "data": {CA_KEY: ca_pem},
    }
