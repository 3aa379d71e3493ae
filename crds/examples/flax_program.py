"""Fit a sine with Flax NNX, Optax and Orbax, on any number of processes: the loss is the same at every size."""

import argparse
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from trainingjob_program import report_saved, report_step

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=48)
parser.add_argument("--steps", type=int, default=300)
options = parser.parse_args()
jax.distributed.initialize()  # everything about this world is in the environment
mesh = jax.make_mesh((jax.device_count(),), ("data",))
replicated, sharded = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))


class Network(nnx.Module):
    """Two dense layers: [batch, 1] to [batch, 1]."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden, self.output = nnx.Linear(1, 64, rngs=rngs), nnx.Linear(64, 1, rngs=rngs)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Return the outputs."""
        return self.output(nnx.tanh(self.hidden(inputs)))


def create() -> tuple[Network, nnx.Optimizer[Network]]:
    """Return a model and its optimizer."""
    model = Network(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)


graph, shapes = nnx.split(nnx.eval_shape(create))


@jax.jit
def train_step(state: Any, inputs: jax.Array, targets: jax.Array) -> tuple[Any, jax.Array]:
    """Return the state after one step, and the loss before it."""
    model, optimizer = nnx.merge(graph, state)
    loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(inputs) - targets) ** 2))(model)
    optimizer.update(model, gradients)
    return nnx.state((model, optimizer)), loss


def draw_batch(step: int) -> list[jax.Array]:
    """Return the inputs and targets of a step: arrays of [batch size, 1], the same whatever the number of processes."""
    inputs = np.random.default_rng(step).uniform(-2, 2, (options.batch_size, 1)).astype(np.float32)
    whole = inputs, np.sin(3 * inputs)
    return [jax.make_array_from_callback(x.shape, sharded, lambda where, x=x: x[where]) for x in whole]


keep = ocp.CheckpointManagerOptions(save_interval_steps=20, max_to_keep=2)
with ocp.CheckpointManager(os.environ["TRAININGJOB_RUN_FOLDER"], options=keep) as manager:
    first = (manager.latest_step() or 0) + 1
    if first == 1:
        state = jax.jit(lambda: nnx.state(create()), out_shardings=replicated)()
    else:
        target = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated), shapes)
        state = manager.restore(first - 1, args=ocp.args.StandardRestore(target))
    print(f"process {jax.process_index()} of {jax.process_count()} resumes from step {first - 1}", flush=True)
    for step in range(first, options.steps + 1):
        state, loss = train_step(state, *draw_batch(step))
        report_step(step, float(loss))
        print(f"completed step: {step}, loss: {float(loss):.6f}", flush=True)
        # Orbax saves when it is due, and all processes at the same step after a SIGTERM of one of them.
        if manager.save(step, args=ocp.args.StandardSave(state), force=step == options.steps):
            manager.wait_until_finished()
            report_saved(step)
        if manager.reached_preemption(step):
            break
