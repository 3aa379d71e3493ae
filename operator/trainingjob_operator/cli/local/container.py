"""The one container of a pod as a process of this machine: its environment, its folders, its life and its end.

What the kubelet would do, done for real where it matters to an agent: variables from the manifest, the ConfigMap and
the token as files, the exit code and the termination message. Images, limits and isolation are not.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainingjob_operator.cli.companions import DIE_WITH_PARENT
from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.local.children import ContainerEnd
from trainingjob_operator.cli.local.paths import Mounts, move_path, move_paths
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.render.configmap import RUN_CONFIG_KEY
from trainingjob_operator.render.volumes import TMP_FOLDER, TOKEN_FILE

TERMINATION_LOG = "TRAININGJOB_TERMINATION_LOG"
_MESSAGE_BYTES = 4096


class Container:
    """A started container. It leads a session of its own: a Ctrl-C at the terminal does not reach it."""

    def __init__(self, process: asyncio.subprocess.Process, termination_log: Path, memory: Path) -> None:
        self._process = process
        self._termination_log = termination_log
        self._memory = memory

    @property
    def pid(self) -> int:
        """Return the process id of the container's first process."""
        return self._process.pid

    async def wait(self) -> ContainerEnd:
        """Return how the container ended, once it has: with its first process, and then all others at once.

        What it had in memory goes with it.
        """
        code = await self._process.wait()
        for pid in list_processes(f"{TERMINATION_LOG}={self._termination_log}"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._memory, ignore_errors=True)
        message = ""
        with contextlib.suppress(OSError):
            message = self._termination_log.read_bytes()[:_MESSAGE_BYTES].decode(errors="replace")
        return ContainerEnd(128 - code, -code, message) if code < 0 else ContainerEnd(code, message=message)

    async def stop(self, grace_seconds: float) -> None:
        """Ask the container to end, and kill it where it has not after the grace period."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), grace_seconds)
        except TimeoutError:
            self.kill()

    def kill(self) -> None:
        """Kill the container at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


async def start_container(
    pod: Manifest,
    token: str,
    *,
    config_maps: Mapping[str, Manifest],
    volumes: Mounts,
    scratch: Path,
    memory: Path,
    log: Path,
) -> Container:
    """Start the pod's container.

    `volumes` are the folders that outlive the pod, by mount path; what else is mounted lives in `scratch`, and in
    `memory` where it is to be there. Output is appended to `log`.

    Raises:
        UsageError: its program is not installed on this machine.
    """
    mounts = _make_mounts(pod, token, config_maps, volumes, scratch, memory)
    termination_log = scratch / "termination-log"
    environment = os.environ | container_environment(pod, mounts) | {TERMINATION_LOG: str(termination_log)}
    if TMP_FOLDER in mounts:
        environment["TMPDIR"] = str(mounts[TMP_FOLDER])
    container = pod["spec"]["containers"][0]
    command = [*container.get("command", []), *container.get("args", [])]
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            find_program(command[0]),
            *command[1:],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
            preexec_fn=DIE_WITH_PARENT,
        )
    return Container(process, termination_log, memory)


def container_environment(pod: Manifest, mounts: Mounts) -> dict[str, str]:
    """Return the container's variables as the kubelet would resolve them, with paths below a mount moved to its folder.

    Variables from Secrets and ConfigMaps are left out: there are none here. They can be set in the shell.
    """
    environment = {}
    for variable in pod["spec"]["containers"][0].get("env", []):
        value = _resolve(variable, pod)
        if value is not None:
            environment[variable["name"]] = move_path(value, mounts)
    return environment


def list_processes(variable: str) -> list[int]:
    """Return the processes of this machine whose environment has a variable, written as `NAME=value`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's
            if variable.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return sorted(found)


def _resolve(variable: dict[str, Any], pod: Manifest) -> str | None:  # None: its source does not exist here
    if "valueFrom" not in variable:
        return str(variable.get("value", ""))
    field = variable["valueFrom"].get("fieldRef", {}).get("fieldPath")
    if field is None:
        return None
    for group in ("labels", "annotations"):
        prefix = f"metadata.{group}['"
        if field.startswith(prefix):
            return str(pod["metadata"].get(group, {}).get(field.removeprefix(prefix).removesuffix("']"), ""))
    value: Any = pod
    for part in field.split("."):
        value = value.get(part, {})
    return value if isinstance(value, str) else ""


def _make_mounts(
    pod: Manifest, token: str, config_maps: Mapping[str, Manifest], volumes: Mounts, scratch: Path, memory: Path
) -> dict[str, Path]:
    """Return the folder behind each mount path, filled."""
    sources = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    mounts = dict(volumes)
    for mount in pod["spec"]["containers"][0].get("volumeMounts", []):
        if mount["mountPath"] in volumes:
            continue
        source = sources[mount["name"]]
        place = memory if source.get("emptyDir", {}).get("medium") == "Memory" else scratch
        folder = mounts[mount["mountPath"]] = place / mount["name"]
        folder.mkdir(parents=True, mode=0o700)
        if "configMap" in source:
            config = config_maps[source["configMap"]["name"]]["data"]
            # The job's paths are the pod's; the trainer is to find them where they lie here.
            run_config = move_paths(json.loads(config[RUN_CONFIG_KEY]), volumes)
            (folder / RUN_CONFIG_KEY).write_text(json.dumps(run_config, indent=2))
        elif "projected" in source:
            (folder / TOKEN_FILE).write_text(token)
    return mounts


def find_program(name: str) -> str:
    """Return the path of a program: beside this Python first, where the same installation put it.

    Raises:
        UsageError: it is not installed.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise UsageError(f"{name} is not installed here. Install the trainer too: pip install 'trainingjob[trainer]'.")
    return found
