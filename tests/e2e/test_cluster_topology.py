"""The address plan and the registration of the local cluster's nodes."""

import ipaddress
from pathlib import Path

import pytest

from e2e.cluster import cgroups
from e2e.cluster.node_config import cni_config, kubelet_config, node_taints
from e2e.cluster.topology import (
    CONTROL_PLANE_ADDRESS,
    HOST_ADDRESS,
    NODEPOOL_LABEL,
    POD_RANGE,
    TPU_ACCELERATOR_LABEL,
    TPU_TOPOLOGY_LABEL,
    Topology,
)


def test_workers_are_named_after_slice_and_host() -> None:
    names = [node.name for node in Topology(slices=2, hosts=2).nodes()]

    assert names == ["system", "slice-0-host-0", "slice-0-host-1", "slice-1-host-0", "slice-1-host-1"]


def test_a_slice_is_one_node_pool() -> None:
    pools = [node.labels[NODEPOOL_LABEL] for node in Topology(slices=2, hosts=2).nodes() if not node.is_system]

    assert pools == ["slice-0", "slice-0", "slice-1", "slice-1"]


def test_addresses_and_pod_ranges_never_overlap() -> None:
    nodes = Topology(slices=66, hosts=3).nodes()
    addresses = {node.address for node in nodes} | {HOST_ADDRESS, CONTROL_PLANE_ADDRESS}
    ranges = {ipaddress.ip_network(node.pod_cidr) for node in nodes}

    assert len(addresses) == len(nodes) + 2
    assert all(ipaddress.ip_address(address).is_private for address in addresses)
    assert len(ranges) == len(nodes)
    assert all(one.subnet_of(ipaddress.ip_network(POD_RANGE)) for one in ranges)


@pytest.mark.parametrize(("slices", "hosts"), [(0, 2), (2, 0), (20, 10)])
def test_shape_without_enough_addresses_is_rejected(slices: int, hosts: int) -> None:
    with pytest.raises(ValueError, match=f"{slices} slices of {hosts} hosts: .* at most 199 hosts"):
        Topology(slices=slices, hosts=hosts)


def test_only_workers_have_tpu_labels_and_only_on_request() -> None:
    system, worker = Topology(1, 1, tpus_per_host=4, tpu_accelerator="tpu-v5p-slice", tpu_topology="2x2x1").nodes()
    _, plain = Topology(1, 1).nodes()

    assert (worker.labels[TPU_ACCELERATOR_LABEL], worker.labels[TPU_TOPOLOGY_LABEL]) == ("tpu-v5p-slice", "2x2x1")
    assert (worker.num_tpus, system.num_tpus) == (4, 0)
    assert {TPU_ACCELERATOR_LABEL, TPU_TOPOLOGY_LABEL}.isdisjoint(plain.labels | system.labels)


def test_a_topology_survives_its_file() -> None:
    topology = Topology(3, 4, tpus_per_host=4, tpu_accelerator="tpu-v5p-slice", tpu_topology="4x4")

    assert Topology(**topology.to_json()) == topology


def test_only_the_system_node_is_tainted() -> None:
    taints = [node_taints(node) for node in Topology(1, 1).nodes()]

    assert taints == [[{"key": "trainingjob.dev/system", "value": "true", "effect": "NoSchedule"}], []]


def test_each_node_has_its_own_cgroups_and_pod_range() -> None:
    first, second = Topology(1, 2).nodes()[1:]
    configs = [
        kubelet_config(node, client_ca="/ca", cgroup_root=f"/tree/{node.name}", cpu_quota=True)
        for node in (first, second)
    ]
    subnets = [cni_config(node)["plugins"][0]["ipam"]["ranges"][0][0]["subnet"] for node in (first, second)]

    assert [config["cgroupRoot"] for config in configs] == ["/tree/slice-0-host-0", "/tree/slice-0-host-1"]
    assert subnets == ["10.244.1.0/24", "10.244.2.0/24"]


@pytest.mark.parametrize(
    ("file", "content", "is_limited"),
    [
        ("cpu/cpu.cfs_quota_us", "-1", False),
        ("cpu/cpu.cfs_quota_us", "100000", True),
        ("cpu.max", "max 100000", False),
        ("cpu.max", "100000 100000", True),
        ("cpu.stat", "usage_usec 1", False),
    ],
)
def test_containers_have_no_quota_on_a_machine_with_a_quota(
    file: str, content: str, is_limited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(f"{content}\n")
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path)

    assert cgroups.has_cpu_quota() is is_limited
