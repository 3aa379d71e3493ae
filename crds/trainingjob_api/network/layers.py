"""Which layers differ: leading layers, and a pattern that repeats."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, repeat
from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import Example, Unit
from trainingjob_api.network.rope import Rope


class LayerKind(Strict):
    """Consecutive layers that are alike. An unset field has the value of the model."""

    count: Annotated[int, Field(ge=1, le=1024), Unit("layers"), Example(5)] = Field(
        default=1, description="Number of consecutive layers of this kind."
    )
    attention: Annotated[Literal["full", "window", "chunk"] | None, Example("window")] = Field(
        default=None,
        description="Tokens that a token attends to: all before it, those in `attention.window`, or those in its "
        "`attention.chunk`. Unset: the window or the chunk that `attention` sets, if any.",
    )
    positions: Annotated[Literal["rope", "none"] | None, Example("rope")] = Field(
        default=None, description="Positions of queries and keys. Unset: `model.positions`."
    )
    rope: Rope | None = Field(default=None, description="Rotary positions of these layers. Unset: `model.rope`.")
    feed_forward: Annotated[Literal["dense", "experts"] | None, Example("dense")] = Field(
        default=None,
        description="One MLP of width `model.mlpDim` (`dense`), or the experts. Unset: the experts, if the model has "
        "them.",
    )


class Layers(Strict):
    """Layers that differ, in the order of the stack."""

    leading: Annotated[tuple[LayerKind, ...], Field(max_length=64)] = Field(
        default=(), description="First layers of the stack, once: the dense layers of DeepSeek-V3, for example."
    )
    pattern: Annotated[tuple[LayerKind, ...], Field(max_length=64)] = Field(
        default=(),
        description="Layers after the leading ones, which repeat up to `numLayers`: five with a window and one "
        "without in Gemma 3, for example. Unset: all alike.",
    )


@dataclass(frozen=True)
class Arrangement:
    """The kinds of all layers: some once, a pattern that repeats, and the beginning of another repeat."""

    leading: tuple[LayerKind, ...]
    pattern: tuple[LayerKind, ...]
    repeats: int
    trailing: tuple[LayerKind, ...]

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """Return all kinds."""
        return (*self.leading, *(self.pattern if self.repeats else ()), *self.trailing)

    @property
    def is_uniform(self) -> bool:
        """Return whether all layers repeat one pattern."""
        return not self.leading and not self.trailing


@lru_cache(maxsize=64)  # a strategy search calls this thousands of times
def arrange(layers: Layers | None, num_layers: int) -> Arrangement:
    """Return the kinds of the layers. Leading layers beyond `num_layers` are left out."""
    layers = layers or Layers()
    leading = tuple(islice(_expand(layers.leading), num_layers))
    pattern = tuple(_expand(layers.pattern)) or (LayerKind(),)
    repeats, rest = divmod(num_layers - len(leading), len(pattern))
    return Arrangement(leading, pattern, repeats, pattern[:rest])


def _expand(kinds: Sequence[LayerKind]) -> Iterator[LayerKind]:
    """Yield the kind of each layer."""
    for kind in kinds:
        yield from repeat(kind.model_copy(update={"count": 1}), kind.count)
