"""The one container of a pod as a process of this machine: its environment, its folders, its life and its end.

What the kubelet would do, done for real where it matters to an agent: variables from the manifest, the ConfigMap and
the token as files, the exit code and the termination message. Images, limits and isolation are not.
"""

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainingjob_operator.cli.errors import CommandError
from trainingjob_operator.cli.local.children import ContainerEnd
from trainingjob_operator.shell.ports import Manifest

TERMINATION_LOG = "TRAININGJOB_TERMINATION_LOG"
_PR_SET_PDEATHSIG = 1
_MESSAGE_BYTES = 4096


class Container:
    """A started container. It leads a session of its own: a Ctrl-C at the terminal does not reach it."""

    def __init__(self, process: asyncio.subprocess.Process, termination_log: Path) -> None:
        self._process = process
        self._termination_log = termination_log

    @property
    def pid(self) -> int:
        """Return the process id of the container's first process."""
        return self._process.pid

    async def wait(self) -> ContainerEnd:
        """Return how the container ended, once it has."""
        code = await self._process.wait()
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
        """Kill the container at once. Its children die with it: the agent sees to that."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


async def start_container(
    pod: Manifest, scratch: Path, log: Path, config_maps: Mapping[str, Manifest], token: str
) -> Container:
    """Start the pod's container. Its files live in `scratch`, its output is appended to `log`.

    Raises:
        CommandError: its program is not installed on this machine.
    """
    mounts = _make_mounts(pod, scratch, config_maps, token)
    termination_log = scratch / "termination-log"
    environment = os.environ | container_environment(pod, mounts) | {TERMINATION_LOG: str(termination_log)}
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
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    return Container(process, termination_log)


def container_environment(pod: Manifest, mounts: Mapping[str, Path]) -> dict[str, str]:
    """Return the container's variables as the kubelet would resolve them, with paths below a mount moved to its folder.

    Variables from Secrets and ConfigMaps are left out: there are none here. They can be set in the shell.
    """
    environment = {}
    for variable in pod["spec"]["containers"][0].get("env", []):
        value = _resolve(variable, pod)
        if value is not None:
            environment[variable["name"]] = move_path(value, mounts)
    return environment


def move_path(path: str, mounts: Mapping[str, Path]) -> str:
    """Return the path below the folder of the innermost mount that holds it; a path outside all mounts stays."""
    for mount in sorted(mounts, key=len, reverse=True):
        if path == mount or path.startswith(mount.rstrip("/") + "/"):
            return str(mounts[mount]) + path[len(mount.rstrip("/")) :]
    return path


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


def _make_mounts(pod: Manifest, scratch: Path, config_maps: Mapping[str, Manifest], token: str) -> dict[str, Path]:
    """Return the folder behind each mount path, filled. Claims need none: their mount paths are folders already."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    mounts = {}
    for mount in pod["spec"]["containers"][0].get("volumeMounts", []):
        volume = volumes[mount["name"]]
        if "persistentVolumeClaim" in volume:
            continue
        folder = mounts[mount["mountPath"]] = scratch / mount["name"]
        folder.mkdir(parents=True, mode=0o700)
        for name, text in _volume_files(volume, config_maps, token).items():
            (folder / name).write_text(text)
    return mounts


def _volume_files(volume: Manifest, config_maps: Mapping[str, Manifest], token: str) -> dict[str, str]:
    if "configMap" in volume:
        return dict(config_maps[volume["configMap"]["name"]]["data"])
    sources = volume.get("projected", {}).get("sources", [])
    return {source["serviceAccountToken"]["path"]: token for source in sources if "serviceAccountToken" in source}


def find_program(name: str) -> str:
    """Return the path of a program: beside this Python first, where the same installation put it.

    Raises:
        CommandError: it is not installed.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise CommandError(
            f"{name} is not installed here. Install the trainer too: pip install 'trainingjob[trainer]'."
        )
    return found


def _load_prctl() -> Any:
    return ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


_PRCTL = _load_prctl()


def _die_with_parent() -> None:
    """Ask Linux to kill this process when the runner dies, however it dies. Runs between fork and exec."""
    _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)
