"""The ConfigMap that tells a job's agents and trainer what to do, and whom to trust.

The certificates live beside the config, not in it: they change while the job runs, and nothing else that is read here
does.
"""

from trainingjob_api.world import RunConfig
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import config_map
from trainingjob_operator.render.metadata import job_labels, owner_references
from trainingjob_operator.render.settings import RenderSettings

RUN_CONFIG_KEY = "run.json"
CA_KEY = "ca.crt"


def render_config_map(config: RunConfig, settings: RenderSettings) -> Manifest:
    """Return the ConfigMap of a job: its RunConfig as JSON and the rendezvous' certificates.

    What is as by default is left out. The API server fills in the defaults of fields that a trainer of an older release
    does not know, and it knows no reason to refuse what was never asked of it.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map(config.job.name, config.job.uid),
            "namespace": config.job.namespace,
            "labels": job_labels(config.job),
            "ownerReferences": owner_references(config.job),
        },
        "data": {
            RUN_CONFIG_KEY: config.model_dump_json(by_alias=True, exclude_defaults=True, indent=2) + "\n",
            CA_KEY: settings.ca_pem,
        },
    }
