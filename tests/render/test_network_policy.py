"""The NetworkPolicy of a job: its pods accept only each other."""

from dataclasses import replace

import kubernetes_validate

from trainingjob_api.world import JobIdentity, RunConfig
from trainingjob_operator.render.configmap import NETWORK_POLICY_KEY, render_config_map
from trainingjob_operator.render.jobset import render_base_jobset
from trainingjob_operator.render.network_policy import render_network_policy
from trainingjob_operator.render.render_settings import NetworkRules

SCRAPER = {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]}
STORE = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 443}]}


def test_pods_of_a_job_accept_only_each_other_and_reach_everything(job, settings, cpu_plan) -> None:
    policy = render_network_policy(job, NetworkRules())

    kubernetes_validate.validate(policy, desired_version="1.36", strict=True)
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": policy["spec"]["podSelector"]}]}]
    (replicated,) = render_base_jobset(job, cpu_plan(), settings)["spec"]["replicatedJobs"]
    labels = replicated["template"]["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["metadata"]["ownerReferences"][0]["uid"] == job.uid
    assert policy["metadata"]["namespace"] == job.namespace


def test_the_administrator_adds_sources_and_limits_destinations(job) -> None:
    spec = render_network_policy(job, NetworkRules((SCRAPER,), (STORE,)))["spec"]

    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["ingress"][1:] == [SCRAPER]
    assert spec["egress"] == [{"to": [{"podSelector": spec["podSelector"]}]}, STORE]
    assert render_network_policy(job, NetworkRules(egress=()))["spec"]["egress"] == spec["egress"][:1]


def test_the_config_map_has_the_hash_of_the_policy(job, settings, cpu_plan) -> None:
    def config_hash(job: JobIdentity, network: NetworkRules | None) -> str | None:
        config = RunConfig(job=job, spec=cpu_plan().spec, accelerator_platform="cpu", layouts=())
        return render_config_map(config, replace(settings, network=network))["data"].get(NETWORK_POLICY_KEY)

    assert config_hash(job, None) is None
    assert config_hash(job, NetworkRules()) == config_hash(job, NetworkRules())
    others = [
        config_hash(job, NetworkRules((SCRAPER,))),
        config_hash(job, NetworkRules(egress=())),
        config_hash(job.model_copy(update={"uid": "other"}), NetworkRules()),
    ]
    assert len({*others, config_hash(job, NetworkRules())}) == 4
