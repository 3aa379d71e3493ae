"""The programs that generate text: one reads a part of the prompts, the other takes one token of each row further.

Parameters stay sharded as in training. The rows are sharded over the batch axes of the mesh where these divide them.

Shapes: B rows, L length of a part of the prompts, V vocabulary, D model width.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainingjob_api.base import AXES
from trainingjob_api.decoding import DecodingShape, find_decoding_shape
from trainingjob_api.sharding import RULES
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.models.decoder import Params, SplitModel, split_model_of
from trainingjob_trainer.models.decoding_cache import Cache, cache_axes, decoding_network, empty_cache
from trainingjob_trainer.models.params import DTYPES, matmul_precision
from trainingjob_trainer.parallel.collective_order import order_collectives, order_last_part
from trainingjob_trainer.parallel.sharding import constrain, partition_spec
from trainingjob_trainer.state import combine_signals

MAX_PART_TOKENS = 64
"""Tokens of the prompts that are read at once, if a row is that long."""
READ, ADVANCE = "prompt", "token"
PROGRAM_NAMES = (READ, ADVANCE)
"""Names of the compiled programs."""


class Compiler(Protocol):
    """What compiles programs: the compile cache of a job, for example."""

    def compile_or_load(self, name: str, function: Any, arguments: tuple[Any, ...], result: Any, **options: Any) -> Any:
        """Return a function compiled for abstract arguments. `options` are those of `jax.jit`."""


class Draw(NamedTuple):
    """What decides the next token beside its logits. It is the same on every mesh."""

    seed: jax.Array
    """int32."""
    step: jax.Array
    """Optimizer step after which the text is generated, int32."""
    temperatures: jax.Array
    """Divisor of the logits of each row, float32 [B]. 0: the most likely token is taken."""


class TokenPrograms(NamedTuple):
    """The compiled programs. Both consume the cache that they are given."""

    shape: DecodingShape
    start: Callable[[], Cache]
    """Return a cache without tokens."""
    read: Callable[[Params, Cache, jax.Array, jax.Array], Cache]
    """Return the cache with `part_tokens` tokens of each row [B, L] from a position on."""
    advance: Callable[[Params, Cache, jax.Array, jax.Array, Draw, jax.Array], tuple[Cache, jax.Array, jax.Array]]
    """Return the cache with one token of each row [B] at a position, the next tokens [B], and all control signals."""
    replicate: Callable[[np.ndarray], jax.Array]
    """Return a small array as an argument of the programs."""

    @property
    def part_tokens(self) -> int:
        """Return the number of tokens that `read` takes."""
        return count_part_tokens(self.shape)


class TextGenerator:
    """The programs over one mesh, before they are compiled. `params` are the shapes and shardings of the parameters.

    The experts of `model` have slots for all tokens, see `decoding_network`.
    """

    def __init__(self, model: SplitModel, params: Params, mesh: Mesh, shape: DecodingShape) -> None:
        self._model = model
        self._params = params
        self._mesh = mesh
        self._shape = shape
        self._dtype = DTYPES[model.precision.compute]
        self._replicated = NamedSharding(mesh, PartitionSpec())
        shapes = jax.eval_shape(self.start)
        self._cache: Cache = jax.tree.map(
            lambda leaf, axes: leaf.update(
                sharding=NamedSharding(mesh, partition_spec(axes, leaf.shape, mesh, RULES)),
            ),
            shapes,
            cache_axes(model.network),
        )
        self._cache_shardings = jax.tree.map(lambda leaf: leaf.sharding, self._cache)

    def compile(self, programs: Compiler) -> TokenPrograms:
        """Return the compiled programs."""
        start = jax.jit(self.start, out_shardings=self._cache_shardings)
        read, advance = (self.compile_program(name, programs) for name in PROGRAM_NAMES)
        return TokenPrograms(self._shape, start, read, advance, self.replicate)

    def compile_program(self, name: str, programs: Compiler) -> Any:
        """Return one of the programs compiled, by its name."""
        is_read = name == READ
        arguments = self._read_arguments() if is_read else self._advance_arguments()
        result = self._cache_shardings if is_read else (self._cache_shardings, self._replicated, self._replicated)
        return programs.compile_or_load(
            name, self.read if is_read else self.advance, arguments, result, out_shardings=result, donate_argnums=1
        )

    def _read_arguments(self) -> tuple[Any, ...]:
        return self._params, self._cache, self._int(self._shape.rows, count_part_tokens(self._shape)), self._int()

    def _advance_arguments(self) -> tuple[Any, ...]:
        temperatures = self._int(self._shape.rows).update(dtype=jnp.float32)
        sharding = NamedSharding(self._mesh, PartitionSpec(AXES))
        signals = jax.ShapeDtypeStruct((self._mesh.size,), jnp.int32, sharding=sharding)
        draw = Draw(self._int(), self._int(), temperatures)
        return self._params, self._cache, self._int(self._shape.rows), self._int(), draw, signals

    def start(self) -> Cache:
        """Return a cache without tokens."""
        return empty_cache(self._model.network, self._shape, self._dtype)

    def read(self, params: Params, cache: Cache, tokens_BL: jax.Array, first: jax.Array) -> Cache:
        """Return the cache with the tokens of all rows from position `first` on."""
        return self._decode(params, cache, tokens_BL, first)[1]

    def advance(
        self, params: Params, cache: Cache, tokens_B: jax.Array, position: jax.Array, draw: Draw, signals: jax.Array
    ) -> tuple[Cache, jax.Array, jax.Array]:
        """Return the cache with one token of each row, the next tokens, and the control signals of all processes."""
        hidden_B1D, cache = self._decode(params, cache, tokens_B[:, None], position)

        def read_out(params: Params, hidden_B1D: jax.Array, _: None) -> jax.Array:
            with jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh), matmul_precision(self._model.precision):
                return constrain(self._model.logits(params, hidden_B1D)[:, 0], None, None)

        logits_BV = order_last_part(read_out, self._mesh)(params, hidden_B1D, None)
        signals_B = combine_signals(order_collectives(signals, logits_BV, mesh=self._mesh))
        return cache, choose_tokens(logits_BV, position, draw), jnp.sum(signals_B)

    def replicate(self, values: np.ndarray) -> jax.Array:
        """Return an array that each device holds."""
        return jax.make_array_from_callback(values.shape, self._replicated, lambda _: values)

    def _decode(self, params: Params, cache: Cache, tokens_BL: jax.Array, first: jax.Array) -> tuple[jax.Array, Cache]:
        with jax.sharding.use_abstract_mesh(self._mesh.abstract_mesh), matmul_precision(self._model.precision):
            return self._model.decode(params, tokens_BL, cache, first, self._mesh.shape["stage"])

    def _int(self, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=self._replicated)


def count_part_tokens(shape: DecodingShape) -> int:
    """Return the number of tokens of the prompts that are read at once."""
    return min(MAX_PART_TOKENS, shape.length)


def choose_tokens(logits_BV: jax.Array, position: jax.Array, draw: Draw) -> jax.Array:
    """Return the next token of each row [B]: the most likely one, or a random one by the temperature.

    A random number depends on seed, step, row, position and token alone.
    """
    key = jax.random.fold_in(jax.random.key(draw.seed), draw.step)

    def noise(row: jax.Array) -> jax.Array:
        own = jax.random.fold_in(jax.random.fold_in(key, row), position)
        drawn_V: jax.Array = jax.random.gumbel(own, logits_BV.shape[1:])
        return drawn_V

    is_drawn_B1 = draw.temperatures[:, None] > 0
    scaled_BV = logits_BV / jnp.where(is_drawn_B1, draw.temperatures[:, None], 1.0)
    noise_BV = jax.vmap(noise)(jnp.arange(logits_BV.shape[0]))
    return jnp.argmax(jnp.where(is_drawn_B1, scaled_BV + noise_BV, scaled_BV), axis=-1).astype(jnp.int32)


def make_generator(spec: TrainingJobSpec, params: Params, mesh: Mesh) -> TextGenerator | None:
    """Return the generator of a job's samples for parameters of these shapes and shardings. None: it has no samples."""
    shape = find_decoding_shape(spec)
    if shape is None:
        return None
    return TextGenerator(decoding_model(split_model_of(spec)), params, mesh, shape)


def decoding_model(model: SplitModel) -> SplitModel:
    """Return a model over the same parameters whose experts drop no token."""
    network = decoding_network(model.network)
    return model if network is model.network else SplitModel(network, model.precision, model.memory)
