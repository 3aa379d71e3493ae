"""Weights & Biases. The library reads the API key from the environment, and sends from a separate process.

Every world of a job continues the same run, whose id is the job's UID. W&B only appends to a history. So `step` is a
value that all plots use as their horizontal axis, and `generation` separates the points of a step that was trained
again.
"""

import tempfile
from typing import TYPE_CHECKING

from trainingjob_api.spec.metrics import WandB
from trainingjob_trainer.trackers.tracker import Point, Run

if TYPE_CHECKING:
    import wandb

CONNECT_SECONDS = 30.0


def create_tracker(settings: WandB, run: Run) -> "WandBRun":
    """Return the tracker of `metrics.wandb`."""
    return WandBRun(settings, run)


class WandBRun:
    """The run of a job."""

    def __init__(self, settings: WandB, run: Run) -> None:
        self._settings = settings
        self._job = run.job
        self._run: wandb.Run

    def connect(self) -> None:
        """Create the job's run, or resume it.

        Raises:
            wandb.errors.Error: W&B cannot be reached, or it rejects the key or the project.
        """
        import wandb  # noqa: PLC0415  # takes a second, for which a new world must not wait

        self._teardown = wandb.teardown
        wandb.setup(wandb.Settings(silent=True))
        self._run = wandb.init(
            project=self._settings.project,
            entity=self._settings.entity,
            name=self._settings.name or self._job.name,
            tags=self._settings.tags,
            id=self._job.uid,
            resume="allow",
            dir=tempfile.gettempdir(),
            settings=wandb.Settings(
                init_timeout=CONNECT_SECONDS,
                silent=True,
                console="off",  # the output stays in the pod's log
                disable_git=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
            ),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def write(self, point: Point) -> None:
        """Send the values and texts of a step."""
        values = {f"{point.group}/{name}": value for name, value in {**point.values, **point.texts}.items()}
        self._run.log({"step": point.step, "generation": point.generation, **values})

    def close(self) -> None:
        """Send what is left, and end the library's process."""
        self._run.finish()
        self._teardown()
