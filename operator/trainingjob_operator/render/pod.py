"""The pod of one host: hardened and fixed, except for a small allow-list of what a job may choose.

There is no raw pod template: each field that a job decides is written out here. `check.py` looks at the result.
"""

from collections.abc import Sequence

from trainingjob_api.base import seconds
from trainingjob_api.running import Runtime, Scheduling, Toleration
from trainingjob_api.world import JobIdentity
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.names import UID_LABEL
from trainingjob_operator.core.planner.plan import Plan, SliceShape
from trainingjob_operator.core.planner.run_config import expect
from trainingjob_operator.core.validation.quantity import format_bytes, parse_bytes
from trainingjob_operator.render.env import render_env
from trainingjob_operator.render.settings import RenderSettings
from trainingjob_operator.render.volumes import Mounted, pod_volumes

CONTAINER = "trainer"
AGENT_COMMAND = "trainingjob-agent"
USER = 65532
LOST_NODE_SECONDS = 30
"""How long a pod stays bound to a node that does not answer. Longer than a kubelet takes to restart, so that an upgrade
keeps pods and their caches; far below the default of five minutes, so that a replacement gets its turn. The world does
not wait for it: heartbeats tell of the loss within seconds."""
LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def render_pod_template(
    job: JobIdentity, plan: Plan, settings: RenderSettings, labels: Manifest, avoids: Sequence[str] = ()
) -> Manifest:
    """Return the pod template of a slice's hosts, which lie on other nodes than those to avoid."""
    runtime, scheduling, shape = plan.spec.runtime, plan.spec.scheduling, plan.shape
    volumes = pod_volumes(job, runtime, shape, plan.snapshots)
    return {
        "metadata": {"labels": dict(labels)},
        "spec": {
            # The container starts again in its pod: node, addresses and caches stay.
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
                # A change of owner file by file would take minutes on a large checkpoint folder.
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **_optional("nodeSelector", dict(shape.node_labels) | scheduling.node_selector),
            **_optional("affinity", _keep_clear(avoids)),
            "tolerations": _tolerations(shape, scheduling),
            **_optional("topologySpreadConstraints", _spread(job, shape)),
            "containers": [_container(plan, settings, volumes)],
            "volumes": [mounted.volume for mounted in volumes],
        },
    }


def _container(plan: Plan, settings: RenderSettings, volumes: Sequence[Mounted]) -> Manifest:
    runtime = plan.spec.runtime
    return {
        "name": CONTAINER,
        "image": runtime.image or settings.trainer_image,
        "imagePullPolicy": runtime.image_pull_policy or settings.trainer_pull_policy,
        "command": [AGENT_COMMAND],
        "env": render_env(runtime, settings, expect(plan), has_snapshots=plan.snapshots is not None),
        "resources": _resources(runtime, plan.shape, volumes),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # An agent that dies without a word still leaves its last lines in the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mounted.mount for mounted in volumes],
    }


def _resources(runtime: Runtime, shape: SliceShape, volumes: Sequence[Mounted]) -> Manifest:
    """Return requests and limits: alike for all that cannot be shared, so that no host takes what another was promised.

    CPU has no limit: a host that compiles, or reads ahead, may use what lies idle, and waits for nobody's quota.
    """
    memory = parse_bytes(runtime.resources.memory) + sum(mounted.memory_bytes for mounted in volumes)
    limits = {
        "memory": format_bytes(memory),
        **({shape.resource: str(shape.chips_per_host)} if shape.resource else {}),
    }
    return {"requests": {"cpu": runtime.resources.cpu, **limits}, "limits": limits}


def _tolerations(shape: SliceShape, scheduling: Scheduling) -> list[Manifest]:
    """Return the job's tolerations, then ours where the job does not name the taint itself."""
    named = {toleration.key for toleration in scheduling.tolerations if toleration.effect in (None, "NoExecute")}
    return [
        *(_user_toleration(toleration) for toleration in scheduling.tolerations),
        *(
            {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
            for taint in LOST_NODE_TAINTS
            if taint not in named
        ),
        # Nodes with accelerators are tainted by convention, so that nothing else takes them.
        *({"key": taint, "operator": "Exists", "effect": "NoSchedule"} for taint in shape.taints),
    ]


def _user_toleration(toleration: Toleration) -> Manifest:
    return toleration.model_dump(by_alias=True, exclude_none=True)


def _keep_clear(nodes: Sequence[str]) -> Manifest:
    """Return what keeps pods from nodes: by their names, since labels need not say them."""
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}} if nodes else {}


def _spread(job: JobIdentity, shape: SliceShape) -> list[Manifest]:
    """Return the wish that hosts lie on different nodes. Where a host takes accelerators, they see to it themselves."""
    if shape.resource:
        return []
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",  # a laptop has one node
            "labelSelector": {"matchLabels": {UID_LABEL: job.uid}},
        }
    ]


def _optional(key: str, value: object) -> Manifest:
    return {key: value} if value else {}
