"""Environment variables of the agent: first the job's own, then the operator's, which take precedence."""

from trainingjob_api.running import EnvVar, Runtime
from trainingjob_api.world import Expected
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import HOST_LABEL, JOB_INDEX_LABEL, SLICE_OFFSET_LABEL
from trainingjob_operator.render.configmap import CA_KEY, RUN_CONFIG_KEY
from trainingjob_operator.render.settings import RenderSettings
from trainingjob_operator.render.volumes import (
    CONFIG_FOLDER,
    SNAPSHOT_FOLDER,
    TMP_FOLDER,
    TOKEN_FILE,
    TOKEN_FOLDER,
    cache_folder,
)


def render_env(
    runtime: Runtime, settings: RenderSettings, expected: Expected, *, has_snapshots: bool = False
) -> list[Manifest]:
    """Return the variables of the agent's container."""
    named = {variable.name for variable in runtime.env}
    return [
        *(_user_variable(variable) for variable in runtime.env),
        # The container user has no home directory, and the root file system is read-only.
        *([_plain("HOME", TMP_FOLDER)] if "HOME" not in named else []),
        _plain("TRAININGJOB_CONFIG", f"{CONFIG_FOLDER}/{RUN_CONFIG_KEY}"),
        _plain("TRAININGJOB_RENDEZVOUS", settings.rendezvous_url),
        # Without certificates the rendezvous serves plain HTTP, which agents accept on the loopback device only.
        *([_plain("TRAININGJOB_CA", f"{CONFIG_FOLDER}/{CA_KEY}")] if settings.ca_pem else []),
        _plain("TRAININGJOB_TOKEN", f"{TOKEN_FOLDER}/{TOKEN_FILE}"),
        _field("TRAININGJOB_POD", "metadata.name"),
        _field("TRAININGJOB_POD_UID", "metadata.uid"),
        _field("TRAININGJOB_ADDRESS", "status.podIP"),
        _field("TRAININGJOB_SLICE_OFFSET", f"metadata.labels['{SLICE_OFFSET_LABEL}']"),
        _field("TRAININGJOB_JOB_INDEX", f"metadata.labels['{JOB_INDEX_LABEL}']"),
        _field("TRAININGJOB_HOST", f"metadata.labels['{HOST_LABEL}']"),
        _plain("TRAININGJOB_COMPILE_CACHE", cache_folder(runtime)),
        # Not in the RunConfig: an older trainer rejects a RunConfig with unknown fields.
        _plain("TRAININGJOB_EXPECTED", expected.model_dump_json(exclude_defaults=True)),
        *([_plain("TRAININGJOB_SNAPSHOTS", SNAPSHOT_FOLDER)] if has_snapshots else []),
    ]


def _plain(name: str, value: str) -> Manifest:
    return {"name": name, "value": value}


def _field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _user_variable(variable: EnvVar) -> Manifest:
    if variable.secret_key_ref:
        return {"name": variable.name, "valueFrom": {"secretKeyRef": variable.secret_key_ref.model_dump()}}
    if variable.config_map_key_ref:
        return {"name": variable.name, "valueFrom": {"configMapKeyRef": variable.config_map_key_ref.model_dump()}}
    return _plain(variable.name, variable.value or "")
