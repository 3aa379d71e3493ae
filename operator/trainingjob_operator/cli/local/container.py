"""The container of a pod as a local process: its environment, folders, lifetime and exit.

The module does the kubelet's work that an agent depends on: variables from the manifest, the ConfigMap and the token as
files, the exit code, and the termination message. It ignores images, resource limits and isolation.
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

from trainingjob_operator.cli.child_process import KILL_WITH_PARENT
from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.local.child_manifests import ContainerExit
from trainingjob_operator.cli.local.path_translation import Mounts, move_path, move_paths
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.render.configmap import RUN_CONFIG_KEY
from trainingjob_operator.render.volumes import TMP_FOLDER, TOKEN_FILE

TERMINATION_LOG = "TRAININGJOB_TERMINATION_LOG"
_MESSAGE_BYTES = 4096


class Container:
    """A started container. It leads a separate session, so that Ctrl-C in the terminal does not reach it."""

    def __init__(self, process: asyncio.subprocess.Process, termination_log: Path, memory: Path) -> None:
        self._process = process
        self._termination_log = termination_log
        self._memory = memory

    @property
    def pid(self) -> int:
        """Return the process id of the container's first process."""
        return self._process.pid

    async def wait(self) -> ContainerExit:
        """Wait for the first process to end, kill the container's other processes, and return the exit.

        The container's memory volumes are deleted.
        """
        code = await self._process.wait()
        for pid in list_processes(f"{TERMINATION_LOG}={self._termination_log}"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._memory, ignore_errors=True)
        message = ""
        with contextlib.suppress(OSError):
            message = self._termination_log.read_bytes()[:_MESSAGE_BYTES].decode(errors="replace")
        return ContainerExit(128 - code, -code, message) if code < 0 else ContainerExit(code, message=message)

    async def stop(self, grace_seconds: float) -> None:
        """Terminate the container; kill it if it still runs after the grace period."""
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

    `volumes` maps mount paths to the folders that outlive the pod. All other mounts are in `scratch`, or in `memory` if
    their medium is memory. Output is appended to `log`.

    Raises:
        UsageError: the container's program is not installed on this machine.
    """
    mounts = _make_mounts(pod, token, config_maps, volumes, scratch, memory)
    termination_log = scratch / "termination-log"
    environment = os.environ | container_environment(pod, mounts) | {TERMINATION_LOG: str(termination_log)}
    # Programs of this Python come first, as in the image.
    environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), environment.get("PATH", os.defpath)))
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
            preexec_fn=KILL_WITH_PARENT,
        )
    return Container(process, termination_log, memory)


def container_environment(pod: Manifest, mounts: Mounts) -> dict[str, str]:
    """Return the container's variables as the kubelet would resolve them, with mounted paths translated.

    Variables from Secrets and ConfigMaps are left out, because a local run has none. The user can set them in the
    shell.
    """
    environment = {}
    for variable in pod["spec"]["containers"][0].get("env", []):
        value = _resolve(variable, pod)
        if value is not None:
            environment[variable["name"]] = move_path(value, mounts)
    return environment


def list_processes(variable: str) -> list[int]:
    """Return the processes of this machine whose environment contains a variable, written as `NAME=value`."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if variable.encode() in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
    return sorted(pids)


def _resolve(variable: dict[str, Any], pod: Manifest) -> str | None:  # None: a local run has no such source
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
    """Create and fill the folder of each mount; return the folders by mount path."""
    sources = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    mounts = dict(volumes)
    for mount in pod["spec"]["containers"][0].get("volumeMounts", []):
        if mount["mountPath"] in volumes:
            continue
        source = sources[mount["name"]]
        parent = memory if source.get("emptyDir", {}).get("medium") == "Memory" else scratch
        folder = mounts[mount["mountPath"]] = parent / mount["name"]
        folder.mkdir(parents=True, mode=0o700)
        for projected in source.get("projected", {}).get("sources", ()):
            if "configMap" in projected:
                config = config_maps[projected["configMap"]["name"]]["data"]
                # The config has the pod's paths; the trainer needs the local ones.
                run_config = move_paths(json.loads(config[RUN_CONFIG_KEY]), volumes)
                (folder / RUN_CONFIG_KEY).write_text(json.dumps(run_config, indent=2))
            else:
                (folder / TOKEN_FILE).write_text(token)
    return mounts


def find_program(name: str) -> str:
    """Return the path of a program: that in the folder of this Python, else the first in PATH.

    Raises:
        UsageError: the program is not installed.
    """
    sibling = Path(sys.executable).with_name(name)
    program = str(sibling) if sibling.exists() else shutil.which(name)
    if program is None:
        raise UsageError(f"{name} is not installed here. Install the trainer too: pip install 'trainingjob[trainer]'.")
    return program
