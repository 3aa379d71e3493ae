"""The forward pass of a teacher on all devices of this process, down to the probabilities that are stored.

Shapes: R sequences, one for each device, L length, C tokens of a chunk, D model width, K probabilities of a token.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from trainingjob_api.sharding import RULES, merge_rules
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.teacher import describe_teacher
from trainingjob_trainer.checkpoint.teacher_params import read_teacher
from trainingjob_trainer.data.stored_probabilities import StoredRows
from trainingjob_trainer.data.token_dataset import Sequences
from trainingjob_trainer.models.decoder import Params, split_model_of
from trainingjob_trainer.models.divergence import StoredShares
from trainingjob_trainer.models.params import matmul_precision
from trainingjob_trainer.models.sharded_model import ShardedModel
from trainingjob_trainer.objectives.teacher import Teacher
from trainingjob_trainer.parallel.bit_sums import hash_arrays
from trainingjob_trainer.parallel.mesh import build_mesh, one_replica
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.teach.choose_shares import choose_shares

CHUNK_TOKENS = 256
"""Tokens of a sequence whose probabilities are held at once."""


class TeacherProgram:
    """The teacher of a job on the devices of this process, which shard its parameters.

    Raises:
        TrainingError: the parameters cannot be read.
    """

    def __init__(self, spec: TrainingJobSpec, per_token: int) -> None:
        teacher_spec = describe_teacher(spec)
        assert teacher_spec is not None  # noqa: S101  # the command requires a teacher
        devices = jax.local_devices()
        self.num_sequences = len(devices)
        """Sequences that one call reads."""
        self._spec, self._per_token = spec, per_token
        self._mesh = build_mesh(devices, one_replica(len(devices)))
        model = split_model_of(teacher_spec)
        self._model = ShardedModel(model, self._mesh)
        shapes = Teacher(model, self._mesh, ()).describe_params(merge_rules(spec.parallelism.rules.overrides()))
        loaded = read_teacher(spec, shapes, ProcessGroup(0, 1))
        assert loaded is not None  # noqa: S101  # the job has a teacher
        self._params = loaded.params
        self.teacher_hash = f"{int(hash_arrays(loaded.params)):08x}"
        """Hash of the parameters."""
        self._sharding = NamedSharding(self._mesh, PartitionSpec(RULES["batch"]))
        self._run = jax.jit(self._choose)

    def read(self, rows: Sequences, numbers: np.ndarray) -> StoredRows:
        """Return the probabilities to store for sequences of a dataset, which `numbers` [R] names."""
        arrays = rows.tokens, rows.positions, rows.segment_ids, numbers.astype(np.uint32)
        placed = jax.tree.map(lambda array: jax.device_put(array, self._sharding), arrays)
        found: StoredShares = self._run(self._params, *placed)
        return StoredRows(*map(np.asarray, found))

    def _choose(
        self,
        params: Params,
        tokens_RL: jax.Array,
        positions_RL: jax.Array | None,
        segments_RL: jax.Array | None,
        numbers_R: jax.Array,
    ) -> StoredShares:
        """Return the probabilities of a teacher. The random numbers of a sequence depend on its number and the seed."""
        seed, (R, L) = jax.random.key(self._spec.training.seed), tokens_RL.shape
        uniforms_RL = jax.vmap(lambda number: jax.random.uniform(jax.random.fold_in(seed, number), (L,)))(numbers_R)
        batch: Any = jax.tree.map(lambda array: array[None], (tokens_RL, positions_RL, segments_RL))
        with matmul_precision(self._spec.precision), jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh):
            x_RLD = self._model.run(params, *batch).x[0]
            num_chunks = -(-L // CHUNK_TOKENS)

            def split(array_RL: jax.Array) -> jax.Array:
                padding = [(0, 0), (0, num_chunks * CHUNK_TOKENS - L), *[(0, 0)] * (array_RL.ndim - 2)]
                chunks = jnp.pad(array_RL, padding).reshape(R, num_chunks, CHUNK_TOKENS, *array_RL.shape[2:])
                return jnp.moveaxis(chunks, 1, 0)

            def choose(chunk: tuple[jax.Array, jax.Array]) -> StoredShares:
                x_RCD, uniforms_RC = chunk
                logits_RCV = self._model.logits(params, x_RCD)
                return jax.vmap(lambda logits, uniforms: choose_shares(logits, uniforms, self._per_token))(
                    logits_RCV, uniforms_RC
                )

            chunks: StoredShares = jax.lax.map(choose, (split(x_RLD), split(uniforms_RL)))

        def join(array: jax.Array) -> jax.Array:
            return jnp.moveaxis(array, 0, 1).reshape(R, -1, *array.shape[3:])[:, :L]

        joined: StoredShares = jax.tree.map(join, chunks)
        return joined
