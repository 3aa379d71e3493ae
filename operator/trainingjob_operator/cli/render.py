"""`trainingjob render`: the objects that the operator would create for a job."""

from pathlib import Path

from trainingjob_api.images import TRAINER_REPOSITORIES
from trainingjob_api.world import JobIdentity
from trainingjob_operator.cli.documents import read_single_job
from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.cli.plan_command import describe_image
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.cli.validate_command import require_valid
from trainingjob_operator.cli.yaml_output import to_yaml
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.manifests import get_text
from trainingjob_operator.core.planner.run_config import build_run_config
from trainingjob_operator.render.configmap import render_config_map
from trainingjob_operator.render.jobset import render_jobsets
from trainingjob_operator.render.preparation_job import render_preparation
from trainingjob_operator.render.render_settings import RenderSettings

UID = "00000000-0000-0000-0000-000000000000"
"""Placeholder. The API server assigns the UID at creation; object names carry a hash of it."""
SETTINGS = RenderSettings(
    trainer_image=TRAINER_REPOSITORIES["cpu"],
    trainer_images=TRAINER_REPOSITORIES,
    rendezvous_url="https://trainingjob-operator.trainingjob-system.svc:8443",
    ca_pem="",
)
"""Placeholders for the settings of an installation: trainer images, operator address and certificates."""


def render_file(file: str, output: Path | None, catalog: Catalog) -> None:
    """Print the objects of a file's TrainingJob, or write each into a separate file in a folder.

    Raises:
        CommandError: the job has problems.
        UsageError: the file does not hold exactly one TrainingJob, or the folder cannot be written to.
    """
    job = read_single_job(file)
    plan, _ = require_valid(job, catalog)
    namespace = get_text(job.content, "metadata", "namespace") or "default"
    identity = JobIdentity(name=job.name, namespace=namespace, uid=get_text(job.content, "metadata", "uid") or UID)
    prepare = plan.spec.data.prepare
    objects = [
        render_config_map(build_run_config(identity, plan), SETTINGS),
        *([render_preparation(identity, plan, SETTINGS, prepare)] if prepare else []),
        *render_jobsets(identity, plan, SETTINGS),
    ]
    if output is None:
        for line in describe_image(plan):
            echo(f"# {line}")
        echo(to_yaml(*objects), nl=False)
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        for manifest in objects:
            path = output / f"{manifest['kind'].lower()}-{manifest['metadata']['name']}.yaml"
            path.write_text(to_yaml(manifest), encoding="utf-8")
            echo(f"wrote {path}")
    except OSError as error:
        raise UsageError(f"Cannot write to {output}: {error.strerror}.") from error
