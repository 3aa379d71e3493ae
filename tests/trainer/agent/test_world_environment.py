"""What a process of a world finds in its environment, and what it never inherits: golden files have the whole of it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ROOT
from tests.support.trainer.tiny import UID, make_layout
from trainingjob_agent.world_environment import (
    EnvironmentChanges,
    apply_changes,
    environment_changes,
    without_world_variables,
)
from trainingjob_api.variables import SLICE_VARIABLES, WORLD_VARIABLES
from trainingjob_api.world import Layout, Member, World

GOLDEN = ROOT / "tests/golden/environments"
OF_THE_IMAGE = {"HOME": "/tmp", "PATH": "/opt/venv/bin:/usr/bin"}
OF_THE_PLUGIN = {
    "CHIPS_PER_HOST_BOUNDS": "2,2,1",
    "HOST_BOUNDS": "1,1,2",
    "TPU_ACCELERATOR_TYPE": "v5p-16",
    "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
    "TPU_HOST_BOUNDS": "1,1,2",
    "TPU_RUNTIME_METRICS_PORTS": "8431,8432,8433,8434",
    "TPU_SKIP_MDS_QUERY": "true",
    "TPU_TOPOLOGY": "2x2x2",
    "TPU_TOPOLOGY_WRAP": "false,false,false",
}
"""What the TPU device plugin tells a pod on GKE."""
OF_THE_WEBHOOK = {
    "TPU_WORKER_HOSTNAMES": "demo-slice-1-0.demo,demo-slice-1-1.demo",
    "TPU_WORKER_ID": "1",
}
"""What GKE's webhook tells a pod of a slice: of the second one here, and its second host."""
OF_A_GONE_WORLD = {
    "JAX_COORDINATOR_ADDRESS": "demo-slice-0-0.demo:8476",
    "JAX_PROCESS_ID": "3",
    "MEGASCALE_COORDINATOR_ADDRESS": "demo-slice-0-0.demo",
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_PORT": "8080",
    "MEGASCALE_SLICE_ID": "1",
    "TPU_PROCESS_ADDRESSES": "10.0.0.1:8471,10.0.0.2:8471",
}
GKE = OF_THE_IMAGE | OF_THE_PLUGIN | OF_THE_WEBHOOK


def make_members(slices: tuple[int, ...], hosts: int) -> tuple[Member, ...]:
    places = [(slice_, host) for slice_ in slices for host in range(hosts)]
    return tuple(
        Member(
            process=process,
            slice=slice_,
            host=host,
            pod=f"demo-{slice_}-{host}",
            pod_uid=f"uid-{slice_}-{host}",
            address=f"10.0.{slice_}.{host + 1}",
        )
        for process, (slice_, host) in enumerate(places)
    )


def make_world(slices: tuple[int, ...], hosts: int, generation: int = 7) -> World:
    members = make_members(slices, hosts)
    coordinator = f"{members[0].address}:41234"
    return World(generation=generation, job_uid=UID, coordinator=coordinator, members=members)


class Case(NamedTuple):
    platform: str
    inherited: dict[str, str]
    slices: tuple[int, ...] = (0,)
    hosts: int = 1
    forms_world: bool = True
    devices: int = 2

    @property
    def layout(self) -> Layout:
        return make_layout(num_slices=len(self.slices), hosts_per_slice=self.hosts, devices_per_host=self.devices)

    @property
    def world(self) -> World | None:  # None: it only compiles
        return make_world(self.slices, self.hosts) if self.forms_world else None


CASES = {
    "tpu-one-host": Case("tpu", OF_THE_IMAGE | OF_THE_PLUGIN),
    "tpu-one-slice": Case("tpu", GKE, hosts=2),
    "tpu-two-slices": Case("tpu", GKE, slices=(0, 1), hosts=2),
    "tpu-without-the-slice-in-the-middle": Case("tpu", GKE | OF_A_GONE_WORLD, slices=(0, 2), hosts=2),
    "tpu-after-a-shrink-to-one-slice": Case("tpu", GKE | OF_A_GONE_WORLD, slices=(1,), hosts=2),
    "gpu-one-host": Case("cuda", OF_THE_IMAGE),
    "gpu-one-device": Case("cuda", OF_THE_IMAGE, devices=1),
    "gpu-one-host-with-another-share": Case("cuda", OF_THE_IMAGE | {"XLA_CLIENT_MEM_FRACTION": "0.5"}),
    "gpu-two-hosts": Case("cuda", OF_THE_IMAGE | {"NCCL_COMM_ID": "10.0.0.9:1"}, slices=(0, 1)),
    "gpu-two-hosts-tuned-by-the-job": Case(
        "cuda",
        {
            "XLA_FLAGS": "--xla_gpu_nccl_terminate_on_error=true",
            "XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE": "0",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5",
        },
        hosts=2,
    ),
    "cpu-two-hosts": Case("cpu", OF_THE_IMAGE | {"XLA_FLAGS": "--xla_dump_to=/tmp/x"}, slices=(0, 1)),
    "cpu-compiling": Case("cpu", OF_THE_IMAGE | OF_A_GONE_WORLD, slices=(0, 1), forms_world=False),
}


@pytest.mark.parametrize(("name", "case"), CASES.items(), ids=CASES.keys())
def test_environments(golden: Callable[[Path, str], None], name: str, case: Case) -> None:
    members = case.world.members if case.world else make_members((0,), 1)

    texts = [describe(case, member) for member in members]

    golden(GOLDEN / f"{name}.txt", "\n".join(texts))


def describe(case: Case, member: Member) -> str:
    """Return what becomes of each variable, one a line."""
    changes = environment_changes(case.platform, case.layout, case.inherited, case.world, member.process)
    place = (
        f"process {member.process}: host {member.host} of slice {member.slice}" if case.world else "it only compiles"
    )
    names = sorted({*case.inherited, *changes})
    return "".join(f"{line}\n" for line in (f"# {place}", *(tell(name, case.inherited, changes) for name in names)))


def tell(name: str, inherited: dict[str, str], changes: EnvironmentChanges) -> str:
    value = changes.get(name, "")
    if name not in changes:
        return f"stays    {name}={inherited[name]}"
    if value is None:
        return f"goes     {name} (was {inherited[name]})"
    if name not in inherited:
        return f"comes    {name}={value}"
    return f"becomes  {name}={value} (was {inherited[name]})"


def become(case: Case, process: int, inherited: dict[str, str] | None = None) -> dict[str, str]:
    environment = dict(case.inherited if inherited is None else inherited)
    apply_changes(environment, environment_changes(case.platform, case.layout, environment, case.world, process))
    return environment


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_process_of_this_one_s_inherits_what_it_needs(case: Case) -> None:
    environment = become(case, 0)

    assert environment_changes(case.platform, case.layout, environment, case.world, 0) == {}


FLAG_FILES = [
    ("--xla_dump_to=/tmp/x\n--xla_cpu_ftz=true\n", " --xla_dump_to=/tmp/x\n--xla_cpu_ftz=true"),
    ("", ""),
]


@pytest.mark.parametrize("name", ["cpu-two-hosts", "gpu-two-hosts"])
@pytest.mark.parametrize(("content", "flags"), FLAG_FILES, ids=["flags", "none"])
def test_flags_of_a_file_stay_beside_the_defaults(tmp_path: Path, name: str, content: str, flags: str) -> None:
    """XLA reads a file only if the variable begins with its name, and ignores it after a flag."""
    file = tmp_path / "flags"
    file.write_text(content)
    case = CASES[name]
    defaults = become(case, 0, OF_THE_IMAGE)["XLA_FLAGS"]

    environment = become(case, 0, OF_THE_IMAGE | {"XLA_FLAGS": f" {file}\n"})

    assert environment["XLA_FLAGS"] == defaults + flags
    assert environment_changes(case.platform, case.layout, environment, case.world, 0) == {}


def test_xla_reports_a_file_of_flags_that_is_missing(tmp_path: Path) -> None:
    missing = str(tmp_path / "flags")

    assert become(CASES["cpu-two-hosts"], 0, {"XLA_FLAGS": missing})["XLA_FLAGS"] == missing


@given(
    slices=st.sets(st.integers(0, 20), min_size=1, max_size=5).map(lambda slices: tuple(sorted(slices))),
    hosts=st.integers(1, 4),
    inherited=st.dictionaries(
        st.sampled_from([f"{name}x" for name in WORLD_VARIABLES + SLICE_VARIABLES] + ["PATH"]), st.just("x")
    ),
    data=st.data(),
)
def test_nothing_of_another_world_is_inherited_and_numbers_are_dense(
    slices: tuple[int, ...], hosts: int, inherited: dict[str, str], data: st.DataObject
) -> None:
    case = Case("tpu", inherited, slices, hosts)
    process = data.draw(st.integers(0, len(slices) * hosts - 1))

    environment = become(case, process)

    numbers = int(environment.get("MEGASCALE_SLICE_ID", 0)), int(environment["TPU_WORKER_ID"])
    assert numbers[0] * hosts + numbers[1] == process
    assert int(environment.get("MEGASCALE_NUM_SLICES", 1)) == len(slices)
    inherited_world = {name for name in inherited if name.startswith(WORLD_VARIABLES)}
    assert not inherited_world & environment.keys()
    assert inherited.keys() - inherited_world <= environment.keys()


def test_slices_of_successive_worlds_meet_at_other_ports() -> None:
    ports = []
    for generation in range(998, 1004):
        world = make_world((0, 1), 1, generation)
        layout = make_layout(num_slices=2)
        found = [environment_changes("tpu", layout, {}, world, process) for process in range(2)]
        assert {made["MEGASCALE_COORDINATOR_ADDRESS"] for made in found} == {f"10.0.0.1:{found[0]['MEGASCALE_PORT']}"}
        assert found[0]["MEGASCALE_PORT"] == found[1]["MEGASCALE_PORT"]
        ports.append(found[0]["MEGASCALE_PORT"])

    assert len(set(ports)) == len(ports)
    assert all(20_000 <= int(port or 0) < 21_000 for port in ports)


def test_standby_has_no_variables_of_a_world() -> None:
    assert without_world_variables(GKE | OF_A_GONE_WORLD) == OF_THE_IMAGE | OF_THE_PLUGIN


def test_variables_of_a_world_are_rejected_in_a_spec_and_removed_from_a_child() -> None:
    made = {name for case in CASES.values() for name in become(case, 0, {})}

    tuning = {"XLA_FLAGS", "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE", "no_grpc_proxy"}
    assert {name for name in made if not name.startswith(WORLD_VARIABLES)} == tuning


@pytest.mark.thorough
def test_xla_accepts_the_flags() -> None:
    """XLA aborts a process with unknown flags, on every platform."""
    environment = {**become(CASES["gpu-two-hosts"], 0), "PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu"}

    program = "import jax; print(len(jax.devices()))"
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr
