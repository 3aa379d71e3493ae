"""The order of tokens on the devices: what belongs to the next token of the sequence."""

import numpy as np
import pytest

from trainingjob_api.token_order import Exchange
from trainingjob_trainer.parallel.token_order import shift_tokens, to_mesh_order


@pytest.mark.parametrize(("exchange", "shards"), [("gather", 4), ("ring", 1), ("ring", 2), ("ring", 4)])
def test_each_token_gets_what_belongs_to_the_next(exchange: Exchange, shards: int) -> None:
    rows_BL = np.arange(32, dtype=np.int32).reshape(2, 16)

    shifted = shift_tokens(to_mesh_order(rows_BL, exchange, shards)[..., None], exchange, shards)

    want = to_mesh_order(np.roll(rows_BL, -1, axis=1), exchange, shards)
    np.testing.assert_array_equal(shifted[..., 0], want)
