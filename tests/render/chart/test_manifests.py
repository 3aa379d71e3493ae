"""What the chart installs: the operator, its webhook, the definition."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.webhook_mount import MOUNTED
from trainingjob_operator.core.node_signals import NodeSignal
from trainingjob_operator.core.planner.plan import Rates
from trainingjob_operator.render.render_settings import NetworkRules
from trainingjob_operator.shell.accelerators import read_accelerators
from trainingjob_operator.shell.added_presets import read_presets
from trainingjob_operator.shell.added_profiles import read_profiles
from trainingjob_operator.shell.added_values import ADDED_TABLES, describe_table
from trainingjob_operator.shell.assembly import RECONCILE_DRAIN_SECONDS
from trainingjob_operator.shell.leader_label import LEADER_LABEL
from trainingjob_operator.shell.process import REQUEST_DRAIN_SECONDS
from trainingjob_operator.shell.settings import RENDEZVOUS_PORT, Settings, read_settings
from trainingjob_operator.shell.tls import dns_names
from trainingjob_operator.shell.webhook_server import DRAIN_SECONDS

ROOT = Path(__file__).parents[3]
NAMESPACE = "trainingjob-system"
CUSTOM_KINDS = {"Certificate", "Issuer", "ServiceMonitor", "PodMonitor", "PrometheusRule"}


def test_the_manifests_are_the_golden_ones(chart, golden, variants, variant) -> None:
    # Releases of Helm differ in the empty lines that they put between manifests.
    manifests = re.sub(r"\n+---\n", "\n---\n", chart.template(variants[variant]))
    golden(ROOT / f"tests/golden/chart/{variant}.yaml", manifests)


def test_every_object_is_valid_for_the_api_server(chart, variants, variant) -> None:
    manifests = chart.objects(variants[variant])

    builtin = [one for one in manifests if one["kind"] not in CUSTOM_KINDS]
    assert len(builtin) >= 7
    for one in builtin:
        kubernetes_validate.validate(one, desired_version="1.36", strict=True)


def test_lint_reports_nothing(chart, variants, variant) -> None:
    done = chart.run("lint", variants[variant])

    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("keep", [True, False])
def test_crd_is_the_generated_one_and_is_kept_on_request(chart, keep) -> None:
    values = {"crds": {"keep": keep}}
    crd = chart.find("CustomResourceDefinition", values, "trainingjobs.trainingjob.dev")

    generated = yaml.safe_load((ROOT / "crds/trainingjob.yaml").read_text())
    assert crd["spec"] == generated["spec"]
    assert crd["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == ("keep" if keep else None)


OPERATOR, WEBHOOK = "trainingjob-operator", "trainingjob-operator-webhook"
LEVEL_FILE = Path("/etc/trainingjob/logs/level")


def environment(chart: Any, values: dict[str, Any], name: str = OPERATOR) -> dict[str, str]:
    deployment = chart.find("Deployment", values, name)
    variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    values_by_name = {one["name"]: one["value"] if "value" in one else set_by_kubelet(one) for one in variables}
    assert len(values_by_name) == len(variables), "a variable is set twice"
    return values_by_name


def set_by_kubelet(variable: dict[str, Any]) -> str:
    reported = {"metadata.namespace": NAMESPACE, "metadata.name": "operator-1", "spec.nodeName": "system-1"}
    return reported[variable["valueFrom"]["fieldRef"]["fieldPath"]]


def test_operator_reads_every_setting_of_the_chart(chart, variants) -> None:
    assert read_settings(environment(chart, {})) == Settings(
        trainer_image="localhost/trainingjob-trainer:0.1.0",
        namespace=NAMESPACE,
        node="system-1",
        pod="operator-1",
        job_network=NetworkRules(),
        log_level_file=LEVEL_FILE,
    )
    assert read_settings(environment(chart, variants["everything"])) == Settings(
        trainer_image="mirror.example:5000/ml/ml/trainer:2.0",
        trainer_images={
            "tpu": "mirror.example:5000/ml/ml/trainer:2.0-tpu",
            "cuda13": f"mirror.example:5000/ml/ml/trainer-cuda13@sha256:{'1' * 64}",
        },
        namespace=NAMESPACE,
        node="system-1",
        pod="operator-1",
        namespaces=("research", "prod"),
        trainer_pull_policy="Always",
        elastic_workload_priority="low",
        node_signals=(
            NodeSignal("taint", "node.example/maintenance"),
            NodeSignal("label", "node.example/health", "bad", "avoid", is_fault=True),
            NodeSignal("taint", "karpenter.sh/disrupted", effect="ignore"),
        ),
        webhook_port=10250,
        metrics_tls_port=9444,
        metrics_authentication=True,
        certificates=Path("/etc/trainingjob/certificates"),
        accelerators=Path("/etc/trainingjob/accelerators/accelerators.yaml"),
        presets=Path("/etc/trainingjob/presets/presets.yaml"),
        pod_profiles=Path("/etc/trainingjob/pod-profiles/podProfiles.yaml"),
        job_network=NetworkRules(
            ({"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]},),
            (
                {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]},
                {
                    "to": [
                        {
                            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
                            "podSelector": chart.find("Deployment", {})["spec"]["selector"],
                        }
                    ],
                    "ports": [{"protocol": "TCP", "port": RENDEZVOUS_PORT}],
                },
                {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 443}]},
            ),
        ),
        log_level_file=LEVEL_FILE,
        log_format="text",
    )
    little = read_settings(environment(chart, variants["little"]))
    assert (little.webhook_enabled, little.job_network) == (False, None)


@pytest.mark.parametrize("name", [OPERATOR, WEBHOOK])
def test_the_chart_sets_every_variable_and_no_other(chart, name) -> None:
    variables = {f"TRAININGJOB_{field.upper()}" for field in Settings.__dataclass_fields__}
    assert environment(chart, {}, name).keys() == variables


def test_the_webhook_has_the_operator_s_settings_its_ports_and_its_certificates(chart, variants) -> None:
    folder = Path("/etc/trainingjob/certificates")
    for values, metrics_port in ({}, 8080), (variants["everything"], 9090):
        operator = read_settings(environment(chart, values))
        webhook = read_settings(environment(chart, values, WEBHOOK))

        assert webhook == replace(operator, certificates=folder, metrics_port=metrics_port)
        assert webhook.webhook_host == f"{WEBHOOK}.{NAMESPACE}.svc"


@pytest.mark.parametrize("table", ADDED_TABLES)
def test_the_operator_reads_the_rows_of_the_values_where_they_are_mounted(chart, variants, table) -> None:
    values, words = variants["everything"], describe_table(table).split()
    name = "-".join(words)
    config = chart.find("ConfigMap", values, f"trainingjob-operator-{name}")["data"]
    pod = chart.find("Deployment", values)["spec"]["template"]["spec"]
    (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == name]
    (volume,) = [one for one in pod["volumes"] if one["name"] == name]
    path = Path(environment(chart, values)[f"TRAININGJOB_{'_'.join(words).upper()}"])

    assert (volume["configMap"]["name"], str(path.parent)) == (f"trainingjob-operator-{name}", mount["mountPath"])
    assert yaml.safe_load(config[path.name]) == values[table]


def test_the_operator_accepts_the_rows_of_the_values(variants) -> None:
    accelerators = read_accelerators(variants["everything"]["accelerators"])
    presets = read_presets(variants["everything"]["presets"])
    profiles = read_profiles(variants["everything"]["podProfiles"], accelerators.hardware.accelerators)

    assert (accelerators.invalid_rows, presets.invalid_rows, profiles.invalid_rows) == ((), (), ())
    assert profiles.profiles[0].network == 45e9
    rates = accelerators.hardware.accelerators_by_name["nvidia-l40s"].rates
    assert rates == Rates(bfloat16=362e12, memory=864e9, link=1e15)
    assert presets.presets["team-1b"].context == 8192


def test_other_accelerators_are_read_by_another_pod(chart, variants) -> None:
    def annotations(**accelerators: Any) -> dict[str, str]:
        deployment = chart.find("Deployment", {"accelerators": accelerators})
        return deployment["spec"]["template"]["metadata"].get("annotations", {})

    row = variants["everything"]["accelerators"]["nvidia-l40s"]
    assert annotations() == {}
    assert annotations(a=row) != annotations(b=row)
    assert annotations(a=row) == annotations(a=row)


@pytest.mark.parametrize("name", [OPERATOR, WEBHOOK])
def test_another_log_level_changes_a_file_and_no_pod(chart, name) -> None:
    debug = {"logs": {"level": "debug"}}
    deployment = chart.find("Deployment", {}, name)
    pod = deployment["spec"]["template"]["spec"]
    (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "logs"]
    (volume,) = [one for one in pod["volumes"] if one["name"] == "logs"]

    assert chart.find("Deployment", debug, name) == deployment
    levels = chart.find("ConfigMap", debug, volume["configMap"]["name"])["data"]
    assert (mount["mountPath"], levels) == (str(LEVEL_FILE.parent), {LEVEL_FILE.name: "debug"})


@pytest.mark.parametrize("name", [OPERATOR, WEBHOOK])
def test_both_deployments_have_the_values_for_pods(chart, variants, name) -> None:
    pod = chart.find("Deployment", variants["everything"], name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert container["image"] == f"mirror.example:5000/ml/trainingjob-operator@sha256:{'0' * 64}"
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert environment(chart, variants["everything"], name)["HTTPS_PROXY"] == "http://proxy.example:3128"
    assert {"name": "trust", "configMap": {"name": "company-ca"}} in pod["volumes"]
    assert {"name": "trust", "mountPath": "/etc/ssl/company", "readOnly": True} in container["volumeMounts"]
    assert (pod["nodeSelector"], pod["priorityClassName"]) == ({"role": "system"}, "system-cluster-critical")
    assert {"key": "system", "operator": "Exists"} in pod["tolerations"]


def test_the_pod_of_helm_test_has_the_values_for_pods(chart, variants) -> None:
    """A variable may name a file of an added volume, such as a company's CA."""
    pod = chart.find("Pod", variants["everything"], f"{OPERATOR}-test")["spec"]
    (container,) = pod["containers"]

    assert {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"} in container["env"]
    assert {"name": "trust", "configMap": {"name": "company-ca"}} in pod["volumes"]
    assert {"name": "trust", "mountPath": "/etc/ssl/company", "readOnly": True} in container["volumeMounts"]
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    (plain,) = chart.find("Pod", {}, f"{OPERATOR}-test")["spec"]["volumes"]
    assert plain["name"] == "tmp"


IMAGES = {
    "localhost/trainingjob-operator": "mirror.example/trainingjob-operator",
    "registry.example:5000/ml/operator": "mirror.example/ml/operator",
    "ml/operator": "mirror.example/ml/operator",
    "operator": "mirror.example/operator",
}


@pytest.mark.parametrize(("repository", "wanted"), IMAGES.items())
def test_another_registry_replaces_that_of_a_repository(chart, repository, wanted) -> None:
    values = {"image": {"repository": repository, "tag": "1"}, "imageRegistry": "mirror.example"}
    (container,) = chart.find("Deployment", values)["spec"]["template"]["spec"]["containers"]

    assert container["image"] == f"{wanted}:1"


@pytest.mark.parametrize("name", [OPERATOR, WEBHOOK])
def test_the_operator_s_own_pods_are_hardened(chart, name) -> None:
    pod = chart.find("Deployment", {}, name)["spec"]["template"]["spec"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not any("hostPath" in volume for volume in pod["volumes"])


def test_the_operator_is_replaced_by_a_pod_that_waits_for_its_lease(chart, variants) -> None:
    deployment = chart.find("Deployment", {})["spec"]

    assert (deployment["replicas"], chart.find("Deployment", variants["everything"])["spec"]["replicas"]) == (1, 2)
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert deployment["template"]["spec"]["terminationGracePeriodSeconds"] > RECONCILE_DRAIN_SECONDS
    assert chart.find("PodDisruptionBudget", {})["spec"]["selector"] == deployment["selector"]


def test_agents_reach_the_pod_that_the_leader_labels(chart) -> None:
    selector = chart.find("Service", {})["spec"]["selector"]
    labels = chart.find("Deployment", {})["spec"]["template"]["metadata"]["labels"]

    assert selector == {**labels, LEADER_LABEL: "true"}, "no pod has the label before it leads"


def test_webhook_matches_only_trainingjobs_with_new_specs(chart) -> None:
    (webhook,) = chart.find("ValidatingWebhookConfiguration", {})["webhooks"]

    (rule,) = webhook["rules"]
    assert (rule["apiGroups"], rule["resources"]) == (["trainingjob.dev"], ["trainingjobs"])
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert "object.spec != oldObject.spec" in webhook["matchConditions"][0]["expression"]
    assert (webhook["failurePolicy"], webhook["sideEffects"], webhook["timeoutSeconds"]) == ("Fail", "None", 5)


def test_the_webhook_reviews_all_namespaces_and_knows_the_watched_ones(chart, variants) -> None:
    (webhook,) = chart.find("ValidatingWebhookConfiguration", variants["everything"])["webhooks"]

    assert "namespaceSelector" not in webhook
    assert environment(chart, variants["everything"], WEBHOOK)["TRAININGJOB_NAMESPACES"] == "research,prod"


def test_the_chart_never_writes_what_the_operator_publishes(chart, variants, variant) -> None:
    """An upgrade that wrote an empty bundle or Secret would cut off every agent and every `kubectl apply`."""
    manifests = chart.objects(variants[variant])

    assert "caBundle" not in json.dumps(manifests)
    assert not any("data" in one or "stringData" in one for one in manifests if one["kind"] == "Secret")


@pytest.mark.parametrize(
    ("variant", "name", "ports"),
    [
        ("default", OPERATOR, {8443: 8443, 8080: 8080}),
        ("default", WEBHOOK, {443: 9443, 8080: 8080}),
        ("everything", WEBHOOK, {443: 10250, 9444: 9444}),
    ],
)
def test_a_service_reaches_the_pods_of_its_deployment_and_no_others(chart, variants, variant, name, ports) -> None:
    values = variants[variant]
    service = chart.find("Service", values, name)["spec"]
    deployments = {one: chart.find("Deployment", values, one)["spec"]["template"] for one in (OPERATOR, WEBHOOK)}
    containers = deployments[name]["spec"]["containers"]

    container_ports = {one["name"]: one["containerPort"] for one in containers[0]["ports"]}
    assert {one["port"]: container_ports[one["targetPort"]] for one in service["ports"]} == ports
    selector = {key: value for key, value in service["selector"].items() if key != LEADER_LABEL}
    for other, template in deployments.items():
        assert (selector.items() <= template["metadata"]["labels"].items()) == (other == name)


def test_the_api_server_calls_the_service_of_the_webhook(chart) -> None:
    (webhook,) = chart.find("ValidatingWebhookConfiguration", {})["webhooks"]

    called = webhook["clientConfig"]["service"]
    assert (called["name"], called["namespace"], called["port"]) == (WEBHOOK, NAMESPACE, 443)


def test_the_webhook_stays_up_in_drains_and_rollouts(chart) -> None:
    deployment = chart.find("Deployment", {}, WEBHOOK)["spec"]
    budget = chart.find("PodDisruptionBudget", {}, WEBHOOK)["spec"]
    pod = deployment["template"]["spec"]

    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert (budget["maxUnavailable"], budget["selector"]) == (1, deployment["selector"])
    assert pod["terminationGracePeriodSeconds"] > DRAIN_SECONDS + REQUEST_DRAIN_SECONDS


def test_on_the_host_s_network_a_pod_makes_place_for_the_next(chart, variants) -> None:
    deployment = chart.find("Deployment", variants["everything"], WEBHOOK)["spec"]

    assert deployment["template"]["spec"]["hostNetwork"] is True
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


def test_the_webhook_s_pods_hold_its_own_key_and_no_other(chart, variants) -> None:
    def mounted(values: dict[str, Any]) -> dict[str, Any]:
        pod = chart.find("Deployment", values, WEBHOOK)["spec"]["template"]["spec"]
        (volume,) = [one["secret"] for one in pod["volumes"] if "secret" in one]
        return volume

    own = mounted({})
    assert own["secretName"] == Settings(trainer_image="t").ca_secret
    assert {one["key"]: one["path"] for one in own["items"]} == MOUNTED
    values = variants["everything"]
    certificates = {one["spec"]["secretName"]: one for one in chart.objects(values) if one["kind"] == "Certificate"}
    issued = certificates[mounted(values)["secretName"]]
    assert issued["spec"]["dnsNames"] == list(dns_names(f"{WEBHOOK}.{NAMESPACE}.svc"))
    configuration = chart.find("ValidatingWebhookConfiguration", values)
    injected = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert injected == f"{NAMESPACE}/{issued['metadata']['name']}"
