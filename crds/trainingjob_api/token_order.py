"""The order of a sequence's tokens on the axis `context`, for planner and trainer alike.

With a ring, device r of n holds the chunks r and 2n - 1 - r of the 2n chunks of a sequence (zigzag). A causal mask
then hides equally many scores of each device (Llama 3, arXiv 2407.21783).
"""

from typing import Literal

type Exchange = Literal["gather", "ring"]
"""How the devices along `context` exchange keys and values."""


def order_chunks(exchange: Exchange, shards: int) -> tuple[int, ...]:
    """Return the chunks of a sequence in the order in which devices hold them; one chunk keeps all tokens in place."""
    if exchange == "gather" or shards == 1:
        return (0,)
    return tuple(chunk for rank in range(shards) for chunk in (rank, 2 * shards - 1 - rank))
