"""Helm over the chart: each rendering happens once a session."""

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.binaries import binaries_dir

CHART = Path(__file__).parents[3] / "charts/trainingjob"
NAMESPACE = "trainingjob-system"

MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
EVERYTHING: dict[str, Any] = {
    "image": {"digest": f"sha256:{'0' * 64}"},
    "imagePullSecrets": [{"name": "pull"}],
    "trainer": {
        "image": {"repository": "registry.example:5000/ml/trainer", "tag": "2.0", "pullPolicy": "Always"},
        "images": {
            "tpu": {"tag": "2.0-tpu"},
            "cuda13": {"repository": "registry.example:5000/ml/trainer-cuda13", "digest": f"sha256:{'1' * 64}"},
        },
    },
    "replicas": 2,
    "podDisruptionBudget": {"enabled": False},
    "topologySpreadConstraints": [],
    "watch": {"namespaces": ["research", "prod"]},
    "kueue": {"elasticWorkloadPriority": "low"},
    "nodeSignals": [
        {"taint": "node.example/maintenance"},
        {"label": "node.example/health", "value": "bad", "effect": "avoid", "fault": True},
        {"taint": "karpenter.sh/disrupted", "effect": "ignore"},
    ],
    "accelerators": {
        "nvidia-l40s": {
            "platform": "cuda",
            "resource": "nvidia.com/gpu",
            "memory": "45Gi",
            "nodeLabels": {"cloud.example/gpu": "l40s"},
            "topologies": {"4": {}, "8": {"hosts": 2}},
            "rates": {"bfloat16": 362e12, "memory": 864e9, "link": 1e15},
        }
    },
    "presets": {
        "team-1b": {"model": {"preset": "llama3.1-8b", "numLayers": 16, "embedDim": 2048}, "context": 8192},
    },
    "podProfiles": {
        "gib": {"from": "gke-a3-ultra", "network": 45e9, "metadata": {"annotations": {"team": "ml"}}},
    },
    "webhook": {
        "failurePolicy": "Ignore",
        "timeoutSeconds": 10,
        "replicas": 3,
        "port": 10250,
        "metricsPort": 9090,
        "hostNetwork": True,
        "podDisruptionBudget": {"enabled": False},
        "topologySpreadConstraints": [],
        "serviceAccountName": "checker",
        "resources": {"limits": {"memory": "600Mi"}},
    },
    "certManager": {"enabled": True},
    "logs": {"level": "debug", "format": "text"},
    "metrics": {
        "tls": {"enabled": True, "port": 9444},
        "authentication": {
            "enabled": True,
            "scrapers": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring"}],
            "tokenSecret": {"name": "scraper"},
        },
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "15s"},
        "alerts": {"enabled": True, "labels": {"release": "prometheus"}, "runbookUrl": "https://wiki.example/oncall"},
    },
    "networkPolicy": {
        "metricsFrom": [MONITORING],
        "webhookFrom": [{"ipBlock": {"cidr": "10.0.0.0/28"}}],
        "restrictEgress": True,
        "apiServerPorts": [6443],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.2.0.0/16"}}], "ports": [{"port": 3128}]}],
        "jobs": {
            "ingress": [{"from": [MONITORING]}],
            "restrictEgress": True,
            "egress": [{"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 443}]}],
        },
    },
    "roles": {"aggregateToEdit": True},
    "serviceAccount": {"name": "trainer", "annotations": {"iam.example/role": "training"}},
    "imageRegistry": "mirror.example:5000/ml",
    "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
    "containerSecurityContext": {"seLinuxOptions": {"type": "spc_t"}},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
    "extraVolumes": [{"name": "trust", "configMap": {"name": "company-ca"}}],
    "extraVolumeMounts": [{"name": "trust", "mountPath": "/etc/ssl/company", "readOnly": True}],
    "nodeSelector": {"role": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "system-cluster-critical",
    "podAnnotations": {"note": "hello"},
    "podLabels": {"team": "ml"},
}
LITTLE: dict[str, Any] = {
    "webhook": {"enabled": False},
    "roles": {"create": False},
    "serviceAccount": {"create": False, "name": "given"},
    "metrics": {"serviceMonitor": {"enabled": True}},
    "networkPolicy": {"enabled": False, "jobs": {"enabled": False}},
}
OWN_ISSUER: dict[str, Any] = {
    "certManager": {"enabled": True, "issuerRef": {"kind": "ClusterIssuer", "name": "company"}},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": EVERYTHING,
    "little": LITTLE,
    "own-issuer": OWN_ISSUER,
}


@dataclass
class Chart:
    """The chart, rendered by helm."""

    helm: str
    folder: Path = CHART
    rendered: dict[str, str] = field(default_factory=dict)

    def run(self, command: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        """Run a command of helm over the chart."""
        words = {"template": ["template", "trainingjob", str(self.folder), f"--namespace={NAMESPACE}"]}
        words["lint"] = ["lint", "--strict", str(self.folder)]
        return subprocess.run(
            [self.helm, *words[command], "--values=-"],
            input=json.dumps(values),
            capture_output=True,
            text=True,
            check=False,
        )

    def template(self, values: dict[str, Any]) -> str:
        """Return the manifests as text, without the large definition unless the values speak of it."""
        values = {"crds": {"enabled": False}} | values
        key = json.dumps(values)
        if key not in self.rendered:
            done = self.run("template", values)
            assert done.returncode == 0, done.stderr
            self.rendered[key] = done.stdout
        return self.rendered[key]

    def objects(self, values: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the manifests."""
        return [one for one in yaml.safe_load_all(self.template(values)) if one]

    def find(self, kind: str, values: dict[str, Any], name: str = "trainingjob-operator") -> dict[str, Any]:
        """Return one manifest."""
        (found,) = [one for one in self.objects(values) if (one["kind"], one["metadata"]["name"]) == (kind, name)]
        return found


@pytest.fixture(scope="session")
def chart() -> Chart:
    program = shutil.which("helm") or str(binaries_dir() / "helm")
    if not Path(program).exists():
        pytest.skip("no helm on PATH, and `make cluster-up` has not built one yet")
    return Chart(program)


@pytest.fixture(params=VARIANTS)
def variant(request) -> str:
    """Each name of `VARIANTS`."""
    return request.param


@pytest.fixture
def variants() -> dict[str, dict[str, Any]]:
    return VARIANTS
