"""The ConfigMap of a job: the RunConfig of its agents and trainer, and the CA certificates that they trust.

The certificates have their own key: the operator renews them while the job runs, and the RunConfig stays the same.
A third key is the hash of the job's NetworkPolicy. The operator applies a policy before the ConfigMap with its hash, so
it needs no watch of policies to notice a change of the rules.
"""

import hashlib
import json

from trainingjob_api.world import RunConfig
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import config_map
from trainingjob_operator.render.metadata import job_labels, owner_references
from trainingjob_operator.render.network_policy import render_network_policy
from trainingjob_operator.render.render_settings import RenderSettings

RUN_CONFIG_KEY = "run.json"
CA_KEY = "ca.crt"
NETWORK_POLICY_KEY = "network-policy.sha256"


def render_config_map(config: RunConfig, settings: RenderSettings) -> Manifest:
    """Return the ConfigMap of a job: its RunConfig as JSON and the CA certificates of the rendezvous.

    The JSON omits default values. The API server sets defaults of new fields, which are unknown to an older trainer.
    An older trainer therefore rejects a config only if the job uses a new field.
    """
    data = {
        RUN_CONFIG_KEY: config.model_dump_json(by_alias=True, exclude_defaults=True, indent=2) + "\n",
        CA_KEY: settings.ca_pem,
    }
    if settings.network:
        policy = json.dumps(render_network_policy(config.job, settings.network), sort_keys=True)
        data[NETWORK_POLICY_KEY] = hashlib.sha256(policy.encode()).hexdigest()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map(config.job.name, config.job.uid),
            "namespace": config.job.namespace,
            "labels": job_labels(config.job),
            "ownerReferences": owner_references(config.job),
        },
        "data": data,
    }
