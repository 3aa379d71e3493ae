"""Checkpoints of untrained models, as sources of parameters."""

from pathlib import Path

import jax.numpy as jnp

from tests.support.trainer.tiny import make_config, make_spec, make_world
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.models.decoder import split_model_of
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.state import State


def save_model(root: Path, spec: TrainingJobSpec, *steps: int) -> None:
    """Save checkpoints with the model of a spec. The seed of the parameters of each is its step."""
    root.mkdir(parents=True, exist_ok=True)
    model, config = split_model_of(spec), make_config(make_spec(root, root))
    with (root.parent / f"{root.name}-events").open("wb", buffering=0) as file:
        saver = Checkpoints(root, config, make_world(1, 1), ProcessGroup(0, 1), "index", AgentEvents(file.fileno()))
        for step in steps:
            scalar = jnp.asarray(step, jnp.int32)
            saver.save(step, State(scalar, model.init(step), {}, scalar, scalar))
            saver.wait()
