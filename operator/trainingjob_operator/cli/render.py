"""`trainingjob render`: the very objects that the operator would create, before it does."""

from pathlib import Path

import yaml

from trainingjob_api.world import JobIdentity
from trainingjob_operator.cli.documents import read_one_job
from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.cli.validate import require_valid
from trainingjob_operator.core.manifests import Manifest, text
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.run_config import run_config
from trainingjob_operator.render.configmap import render_config_map
from trainingjob_operator.render.jobset import render_jobsets
from trainingjob_operator.render.settings import RenderSettings

UID = "00000000-0000-0000-0000-000000000000"
"""The API server gives a job its UID when it is created; names of objects carry a hash of it."""
SETTINGS = RenderSettings(
    trainer_image="trainingjob-trainer",
    rendezvous_url="https://trainingjob-operator.trainingjob-system.svc:8443",
    ca_pem="",
)
"""What an installation adds: its image, where its operator is to be found, and its certificates."""


def render_file(file: str, output: Path | None, hardware: Hardware) -> None:
    """Print the objects of a file's TrainingJob, or write one file each into a folder.

    Raises:
        CommandError: the job has problems.
        UsageError: the file has no single TrainingJob, or the folder cannot be written to.
    """
    job = read_one_job(file)
    plan, _ = require_valid(job, hardware)
    namespace = text(job.content, "metadata", "namespace") or "default"
    identity = JobIdentity(name=job.name, namespace=namespace, uid=text(job.content, "metadata", "uid") or UID)
    objects = [render_config_map(run_config(identity, plan), SETTINGS), *render_jobsets(identity, plan, SETTINGS)]
    if output is None:
        echo(to_yaml(objects), nl=False)
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        for manifest in objects:
            path = output / f"{manifest['kind'].lower()}-{manifest['metadata']['name']}.yaml"
            path.write_text(to_yaml([manifest]), encoding="utf-8")
            echo(f"wrote {path}")
    except OSError as error:
        raise UsageError(f"Cannot write to {output}: {error.strerror}.") from error


def to_yaml(manifests: list[Manifest]) -> str:
    """Return manifests as YAML documents, keys in the order in which they were made."""
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, so that the config in a ConfigMap can be read; no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        """Write each value out where it stands."""
        del data
        return True


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _represent_text)
