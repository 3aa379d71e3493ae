"""The pods of a job: a hardened pod template, in which a job can set only an allow-list of fields.

A job cannot pass a raw pod template: this module renders each field explicitly. A profile of the administrator adds
what the accelerator needs. `pod_policy.py` checks the result.
"""

from collections.abc import Sequence

from trainingjob_api.base import seconds
from trainingjob_api.spec.data import Prepare
from trainingjob_api.spec.runtime import Runtime
from trainingjob_api.spec.scheduling import Scheduling, Toleration
from trainingjob_api.world import JobIdentity
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import CA_CONFIG_MAP, UID_LABEL
from trainingjob_operator.core.planner.plan import Plan, SliceShape
from trainingjob_operator.core.planner.run_config import expected_hardware
from trainingjob_operator.core.validation.quantity import format_bytes, parse_bytes
from trainingjob_operator.render.configmap import find_config_map
from trainingjob_operator.render.env import render_env, render_preparation_env
from trainingjob_operator.render.metadata import job_labels
from trainingjob_operator.render.node_preference import ANY_NODE, NodePreference, render_node_affinity
from trainingjob_operator.render.profile import add_profile
from trainingjob_operator.render.render_settings import RenderSettings
from trainingjob_operator.render.volumes import MountedVolume, pod_volumes, preparation_volumes

CONTAINER = "trainer"
AGENT_COMMAND = "trainingjob-agent"
PREPARE_COMMAND = ("python3", "-P", "-m", "trainingjob_trainer.prepare.prepare_pod")
USER = 65532
LOST_NODE_TOLERATION_SECONDS = 30
"""Toleration in seconds for an unreachable node.

Longer than a kubelet restart, so that a node upgrade keeps pods and their caches. Much shorter than the default of five
minutes, so that the replacement pod starts soon. The world does not wait for the eviction: the operator detects the
lost host by missing heartbeats within seconds.
"""
LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def render_pod_template(
    job: JobIdentity, plan: Plan, settings: RenderSettings, labels: Manifest, nodes: NodePreference = ANY_NODE
) -> Manifest:
    """Return the pod template of a slice's hosts."""
    scheduling, shape = plan.spec.scheduling, plan.shape
    volumes = pod_volumes(_config_maps(job, plan, settings), plan.spec.runtime, shape, plan.snapshots)
    pod = _render_pod(
        plan,
        labels,
        {
            **_optional("nodeSelector", dict(shape.node_labels) | scheduling.node_selector),
            **_optional("affinity", render_node_affinity(nodes)),
            "tolerations": _tolerations(shape.taints, scheduling),
            **_optional("topologySpreadConstraints", [] if shape.resource else _topology_spread(job)),
        },
        _container(
            plan,
            settings,
            volumes,
            platform=shape.platform,
            command=[AGENT_COMMAND],
            env=render_env(plan.spec, settings, expected_hardware(plan), has_snapshots=plan.snapshots is not None),
            resources=_resources(plan.spec.runtime, shape, volumes),
        ),
        volumes,
    )
    return add_profile(pod, shape.profile)


def render_preparation_pod(job: JobIdentity, plan: Plan, settings: RenderSettings, prepare: Prepare) -> Manifest:
    """Return the pod template of the pods that tokenize text, on any node: no accelerator, the users of a profile."""
    volumes = preparation_volumes(_config_maps(job, plan, settings), plan.spec.runtime)
    resources = {"cpu": prepare.resources.cpu, "memory": format_bytes(parse_bytes(prepare.resources.memory))}
    pod = _render_pod(
        plan,
        job_labels(job),
        {
            "tolerations": _tolerations((), plan.spec.scheduling),
            "topologySpreadConstraints": _topology_spread(job),
        },
        _container(
            plan,
            settings,
            volumes,
            platform="cpu",
            command=PREPARE_COMMAND,
            env=render_preparation_env(plan.spec, settings),
            # With a CPU limit, the number of processes and so their memory are the same on every node.
            resources={"requests": dict(resources), "limits": resources},
        ),
        volumes,
    )
    return add_profile(pod, plan.shape.profile and plan.shape.profile.for_preparation)


def _config_maps(job: JobIdentity, plan: Plan, settings: RenderSettings) -> list[str]:
    """Return the names of the ConfigMaps that a pod mounts: the RunConfig, and the certificates if there are any."""
    return [find_config_map(job, plan, settings), *([CA_CONFIG_MAP] if settings.ca_pem else [])]


def _render_pod(
    plan: Plan, labels: Manifest, placement: Manifest, container: Manifest, volumes: Sequence[MountedVolume]
) -> Manifest:
    """Return a pod template with the security settings of all pods."""
    runtime, scheduling = plan.spec.runtime, plan.spec.scheduling
    return {
        "metadata": {"labels": dict(labels)},
        "spec": {
            # The kubelet restarts the container in the same pod, which keeps its node, address and caches.
            "restartPolicy": "OnFailure",
            "terminationGracePeriodSeconds": seconds(runtime.termination_grace_period),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **_optional("serviceAccountName", runtime.service_account_name),
            **_optional("priorityClassName", scheduling.priority_class_name),
            **_optional("imagePullSecrets", [{"name": name} for name in runtime.image_pull_secrets]),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                # A recursive ownership change of a large checkpoint folder takes minutes.
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **placement,
            "containers": [container],
            "volumes": [mounted.volume for mounted in volumes],
        },
    }


def _container(
    plan: Plan,
    settings: RenderSettings,
    volumes: Sequence[MountedVolume],
    *,
    platform: str,
    command: Sequence[str],
    env: list[Manifest],
    resources: Manifest,
) -> Manifest:
    runtime = plan.spec.runtime
    return {
        "name": CONTAINER,
        "image": runtime.image or settings.image_for(platform),
        "imagePullPolicy": runtime.image_pull_policy or settings.trainer_pull_policy,
        "command": list(command),
        "env": env,
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # If the agent dies without a termination message, the pod status holds its last log lines.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mounted.mount for mounted in volumes],
    }


def _resources(runtime: Runtime, shape: SliceShape, volumes: Sequence[MountedVolume]) -> Manifest:
    """Return requests and limits. They are equal for memory and accelerators, which cannot be overcommitted.

    CPU has no limit: compilation and prefetching can use idle CPU time without being throttled by a quota. Disk space
    has none either: the kubelet evicts a pod for its logs too, and volumes have their own limits.
    """
    memory = parse_bytes(runtime.resources.memory) + sum(mounted.memory_bytes for mounted in volumes)
    limits = {
        "memory": format_bytes(memory),
        **({shape.resource: str(shape.chips_per_host)} if shape.resource else {}),
    }
    disk = sum(mounted.disk_bytes for mounted in volumes)
    on_disk = {"ephemeral-storage": format_bytes(disk)} if disk else {}
    return {"requests": {"cpu": runtime.resources.cpu, **limits, **on_disk}, "limits": limits}


def _tolerations(taints: Sequence[str], scheduling: Scheduling) -> list[Manifest]:
    """Return the job's tolerations, then the operator's own for lost nodes, unless the job tolerates the same taint."""
    named = {toleration.key for toleration in scheduling.tolerations if toleration.effect in (None, "NoExecute")}
    return [
        *(_user_toleration(toleration) for toleration in scheduling.tolerations),
        *(
            {
                "key": taint,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": LOST_NODE_TOLERATION_SECONDS,
            }
            for taint in LOST_NODE_TAINTS
            if taint not in named
        ),
        # Accelerator nodes are tainted by convention, so that other pods do not run there.
        *({"key": taint, "operator": "Exists", "effect": "NoSchedule"} for taint in taints),
    ]


def _user_toleration(toleration: Toleration) -> Manifest:
    return toleration.model_dump(by_alias=True, exclude_none=True)


def _topology_spread(job: JobIdentity) -> list[Manifest]:
    """Return the constraints that spread pods over nodes.

    Accelerator hosts need none: their resource requests already spread them.
    """
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",  # a single-node cluster must work too
            "labelSelector": {"matchLabels": {UID_LABEL: job.uid}},
        }
    ]


def _optional(key: str, value: object) -> Manifest:
    return {key: value} if value else {}
