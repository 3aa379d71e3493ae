"""Fit a line with plain JAX, on any number of processes: the same batch, and the same loss, at every size."""

import argparse
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--steps", type=int, default=400)
options = parser.parse_args()
jax.distributed.initialize()  # everything about this world is in the environment
mesh = jax.make_mesh((jax.device_count(),), ("data",))
replicated, sharded = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
newest = Path(os.environ["TRAININGJOB_RUN_FOLDER"]) / "newest.npz"


def draw_batch(step: int) -> list[jax.Array]:
    """Return the inputs and targets of a step: arrays of [batch size], the same whatever the number of processes."""
    inputs = np.random.default_rng(step).normal(size=options.batch_size).astype(np.float32)
    return [
        jax.make_array_from_callback(x.shape, sharded, lambda where, x=x: x[where]) for x in (inputs, 3 * inputs + 1)
    ]


@jax.jit
def train_step(params: jax.Array, inputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the parameters after one step of gradient descent, and the loss before it."""
    loss, gradients = jax.value_and_grad(lambda p: jnp.mean((p[0] * inputs + p[1] - targets) ** 2))(params)
    return params - 0.02 * gradients, loss


def save(step: int, params: jax.Array) -> None:
    """Write the newest step. The rename commits it, so that a killed process leaves the step before it."""
    if jax.process_index() == 0:
        newest.parent.mkdir(parents=True, exist_ok=True)
        np.savez(unfinished := newest.with_name("unfinished.npz"), step=step, params=np.asarray(params))
        unfinished.replace(newest)
    multihost_utils.sync_global_devices(f"saved {step}")
    print(f"saved step: {step}", flush=True)


saved = np.load(newest) if newest.exists() else {"step": 0, "params": np.zeros(2, np.float32)}
params = jax.device_put(saved["params"], replicated)
print(f"process {jax.process_index()} of {jax.process_count()} resumes from step {int(saved['step'])}", flush=True)
for step in range(int(saved["step"]) + 1, options.steps + 1):
    params, loss = train_step(params, *draw_batch(step))
    print(f"completed step: {step}, loss: {float(loss):.6f}", flush=True)
    leaves = multihost_utils.reached_preemption_sync_point(step)  # all processes learn of a SIGTERM at the same step
    if leaves or step % 20 == 0 or step == options.steps:
        save(step, params)
    if leaves:
        break
