"""A pod's container as a local process: its environment, its files, and its exit status."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainingjob_operator.cli.errors import CommandError
from trainingjob_operator.cli.local.child_manifests import ContainerExit
from trainingjob_operator.cli.local.container import (
    TERMINATION_LOG,
    Container,
    container_environment,
    list_processes,
    start_container,
)
from trainingjob_operator.cli.local.path_translation import move_path, move_paths
from trainingjob_operator.core.manifests import Manifest

MOUNTS = {"/shared": Path("/here/shared"), "/shared/cache": Path("/here/cache"), "/": Path("/here/root")}
PATHS = {
    "below a mount": ("/shared/runs/demo", "/here/shared/runs/demo"),
    "the mount itself": ("/shared", "/here/shared"),
    "the innermost mount wins": ("/shared/cache/x", "/here/cache/x"),
    "a name that only begins alike": ("/shared2/x", "/here/root/shared2/x"),
    "a URL": ("https://host/shared", "https://host/shared"),
}


@pytest.mark.parametrize(("path", "want"), PATHS.values(), ids=PATHS.keys())
def test_paths_move_with_their_mount(path: str, want: str) -> None:
    assert move_path(path, MOUNTS) == want


def test_all_paths_of_a_value_move_and_nothing_else_changes() -> None:
    value = {"uri": "/shared/a", "list": ["/shared", "python:json", 3, None, True], "deep": {"x": 1.5}}

    assert move_paths(value, {"/shared": Path("/here")}) == {
        "uri": "/here/a",
        "list": ["/here", "python:json", 3, None, True],
        "deep": {"x": 1.5},
    }


VARIABLES = {
    "plain": ({"value": "a b"}, "a b"),
    "plain and empty": ({}, ""),
    "a path below a mount": ({"value": "/etc/x/run.json"}, "/folder/run.json"),
    "the pod's name": ({"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, "pod-a"),
    "the pod's address": ({"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}, "127.0.0.1"),
    "a label": ({"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a.b/c']"}}}, "7"),
    "a label that is not there": ({"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['x']"}}}, ""),
    "a secret": ({"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}, None),
}


def make_pod(command: list[str], **spec: Any) -> Manifest:
    return {
        "metadata": {"name": "pod-a", "labels": {"a.b/c": "7"}},
        "spec": {"containers": [{"name": "trainer", "command": command, **spec.pop("container", {})}], **spec},
        "status": {"podIP": "127.0.0.1"},
    }


@pytest.mark.parametrize(("variable", "want"), VARIABLES.values(), ids=VARIABLES.keys())
def test_variables_are_resolved(variable: dict[str, Any], want: str | None) -> None:
    pod = make_pod([], container={"env": [{"name": "X", **variable}]})

    assert container_environment(pod, {"/etc/x": Path("/folder")}).get("X") == want


async def start(tmp_path: Path, script: str, bound: dict[str, Path] | None = None, **spec: Any) -> Container:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    config_maps = {"config": {"data": {"run.json": json.dumps({"uri": "/shared/demo", "steps": 3})}}}
    return await start_container(
        make_pod(["sh", "-c", script], **spec),
        "the token",
        config_maps=config_maps,
        volumes=bound or {},
        scratch=scratch,
        memory=tmp_path / "memory",
        log=tmp_path / "log",
    )


async def test_mounted_files_exist(tmp_path: Path) -> None:
    volumes = [
        {"name": "config", "projected": {"sources": [{"configMap": {"name": "config"}}]}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
    ]
    mounts = {"config": "/etc/tj", "token": "/run/token", "tmp": "/tmp", "data": "/shared"}
    env = {"CONFIG": "/etc/tj/run.json", "TOKEN": "/run/token/token", "DATA": "/shared/demo"}

    container = await start(
        tmp_path,
        'cat "$CONFIG" "$TOKEN"; echo " $DATA $TMPDIR"',
        {"/shared": tmp_path / "bound"},
        volumes=volumes,
        container={
            "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
            "env": [{"name": name, "value": value} for name, value in env.items()],
        },
    )

    assert await container.wait() == ContainerExit(0)
    bound = tmp_path / "bound"
    config = json.dumps({"uri": f"{bound}/demo", "steps": 3}, indent=2)
    assert (tmp_path / "log").read_text() == f"{config}the token {bound}/demo {tmp_path}/scratch/tmp\n"


async def test_memory_volumes_are_removed_with_the_container(tmp_path: Path) -> None:
    container = await start(
        tmp_path,
        'echo kept > "$KEPT"; read line < "$KEPT"; echo "$line in $KEPT"',
        volumes=[{"name": "snapshots", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
        container={
            "volumeMounts": [{"name": "snapshots", "mountPath": "/snapshots"}],
            "env": [{"name": "KEPT", "value": "/snapshots/newest"}],
        },
    )

    assert await container.wait() == ContainerExit(0)
    assert (tmp_path / "log").read_text() == f"kept in {tmp_path}/memory/snapshots/newest\n"
    assert not (tmp_path / "memory").exists()


ENDS = {
    "good": ("exit 0", ContainerExit(0)),
    "bad, with last words": ('echo why > "$TRAININGJOB_TERMINATION_LOG"; exit 78', ContainerExit(78, message="why\n")),
    "killed": ("kill -9 $$", ContainerExit(137, signal=9)),
}


@pytest.mark.parametrize(("script", "want"), ENDS.values(), ids=ENDS.keys())
async def test_exit_status_has_the_form_of_kubernetes(script: str, want: ContainerExit, tmp_path: Path) -> None:
    container = await start(tmp_path, script)

    assert await container.wait() == want


async def test_a_program_that_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no-such-agent is not installed here"):
        await start_container(
            make_pod(["no-such-agent"]),
            "",
            config_maps={},
            volumes={},
            scratch=tmp_path,
            memory=tmp_path,
            log=tmp_path / "log",
        )


async def test_a_container_is_out_of_reach_of_the_terminal(tmp_path: Path) -> None:
    container = await start(tmp_path, "sleep 60")

    assert os.getsid(container.pid) == container.pid != os.getsid(0)
    container.kill()
    await container.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_container_dies_with_its_runner(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, time; from pathlib import Path\n"
        "from trainingjob_operator.cli.local.container import start_container\n"
        "pod = {'metadata': {}, 'spec': {'containers': [{'name': 'c', 'command': ['sleep', '60']}]}, 'status': {}}\n"
        "folder = Path(sys.argv[1])\n"
        "container = asyncio.run(start_container(\n"
        "    pod, '', config_maps={}, volumes={}, scratch=folder, memory=folder, log=folder / 'log'))\n"
        "print(container.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        pid = int(runner.stdout.readline())
        pidfd = os.pidfd_open(pid)
        runner.send_signal(signal.SIGKILL)

    ended, _, _ = select.select([pidfd], [], [], 10)
    os.close(pidfd)
    assert ended


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of a process")
async def test_processes_of_a_container_end_with_it_even_if_stopped(tmp_path: Path) -> None:
    container = await start(tmp_path, "setsid sleep 60 & kill -STOP $!; exit 3")

    assert (await container.wait()).exit_code == 3

    async with asyncio.timeout(20):  # they are killed; the kernel needs a moment to say so
        while list_processes(f"{TERMINATION_LOG}={tmp_path}/scratch/termination-log"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
