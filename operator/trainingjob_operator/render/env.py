"""Environment variables of a pod: first the job's own, then the operator's, which take precedence."""

from trainingjob_api.pod_variables import pod_variables
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.runtime import EnvVar
from trainingjob_api.world import ExpectedHardware
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import HOST_LABEL, JOB_INDEX_LABEL, SLICE_OFFSET_LABEL
from trainingjob_operator.render.configmap import CA_KEY, RUN_CONFIG_KEY
from trainingjob_operator.render.render_settings import RenderSettings
from trainingjob_operator.render.volumes import (
    CONFIG_FOLDER,
    SNAPSHOT_FOLDER,
    TMP_FOLDER,
    TOKEN_FILE,
    TOKEN_FOLDER,
    cache_folder,
)


def render_env(
    spec: TrainingJobSpec, settings: RenderSettings, expected: ExpectedHardware, *, has_snapshots: bool = False
) -> list[Manifest]:
    """Return the variables of the agent's container."""
    return [
        *_basic_env(spec, settings),
        _field_ref("TRAININGJOB_SLICE_OFFSET", f"metadata.labels['{SLICE_OFFSET_LABEL}']"),
        _field_ref("TRAININGJOB_JOB_INDEX", f"metadata.labels['{JOB_INDEX_LABEL}']"),
        _field_ref("TRAININGJOB_HOST", f"metadata.labels['{HOST_LABEL}']"),
        _literal("TRAININGJOB_COMPILE_CACHE", cache_folder(spec.runtime)),
        # Not in the RunConfig: an older trainer rejects a RunConfig with unknown fields.
        _literal("TRAININGJOB_EXPECTED", expected.model_dump_json(exclude_defaults=True)),
        *([_literal("TRAININGJOB_SNAPSHOTS", SNAPSHOT_FOLDER)] if has_snapshots else []),
    ]


def render_preparation_env(spec: TrainingJobSpec, settings: RenderSettings) -> list[Manifest]:
    """Return the variables of a container that tokenizes text."""
    return [
        *_basic_env(spec, settings),
        _literal("TRAININGJOB_SLICE_OFFSET", "0"),
        _literal("TRAININGJOB_JOB_INDEX", "0"),
        _field_ref("TRAININGJOB_HOST", f"metadata.labels['{HOST_LABEL}']"),
    ]


def _basic_env(spec: TrainingJobSpec, settings: RenderSettings) -> list[Manifest]:
    """Return the variables that every pod of a job has."""
    variables = [found.variable for found in pod_variables(spec)]
    return [
        *(_user_variable(variable) for variable in variables),
        # The container user has no home directory, and the root file system is read-only.
        *([_literal("HOME", TMP_FOLDER)] if "HOME" not in {variable.name for variable in variables} else []),
        _literal("TRAININGJOB_CONFIG", f"{CONFIG_FOLDER}/{RUN_CONFIG_KEY}"),
        _literal("TRAININGJOB_RENDEZVOUS", settings.rendezvous_url),
        # Without certificates the rendezvous serves plain HTTP, which agents accept on the loopback device only.
        *([_literal("TRAININGJOB_CA", f"{CONFIG_FOLDER}/{CA_KEY}")] if settings.ca_pem else []),
        _literal("TRAININGJOB_TOKEN", f"{TOKEN_FOLDER}/{TOKEN_FILE}"),
        _field_ref("TRAININGJOB_POD", "metadata.name"),
        _field_ref("TRAININGJOB_POD_UID", "metadata.uid"),
        _field_ref("TRAININGJOB_ADDRESS", "status.podIP"),
    ]


def _literal(name: str, value: str) -> Manifest:
    return {"name": name, "value": value}


def _field_ref(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _user_variable(variable: EnvVar) -> Manifest:
    if variable.secret_key_ref:
        return {"name": variable.name, "valueFrom": {"secretKeyRef": variable.secret_key_ref.model_dump()}}
    if variable.config_map_key_ref:
        return {"name": variable.name, "valueFrom": {"configMapKeyRef": variable.config_map_key_ref.model_dump()}}
    return _literal(variable.name, variable.value or "")
