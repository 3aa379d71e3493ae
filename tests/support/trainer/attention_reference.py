"""Attention written again: NumPy in float64, one query and one head at a time."""

import numpy as np

from trainingjob_api.network.attention_blocks import CausalScope


def attend_by_query(
    inputs: dict[str, np.ndarray],
    scope: CausalScope,
    documents_BL: np.ndarray,
    positions_BL: np.ndarray,
    soft_cap: float | None,
) -> np.ndarray:
    """Return the output [B, L, H, V] for q, k, v and the optional sinks of each head."""
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    B, L, H, _ = q.shape
    out = np.zeros((B, L, H, v.shape[-1]))
    for row in range(B):
        for place in range(L):
            seen = [key for key in range(place + 1) if documents_BL[row, key] == documents_BL[row, place]]
            if scope.window:
                seen = [key for key in seen if key > place - scope.window]
            if scope.chunk:
                seen = [
                    key
                    for key in seen
                    if positions_BL[row, key] // scope.chunk == positions_BL[row, place] // scope.chunk
                ]
            for head in range(H):
                group = head // (H // k.shape[2])
                scores = k[row, seen, group] @ q[row, place, head] / np.sqrt(q.shape[-1])
                if soft_cap:
                    scores = soft_cap * np.tanh(scores / soft_cap)
                weights = np.exp(scores)
                total = weights.sum() + (np.exp(inputs["sinks"][head]) if "sinks" in inputs else 0)
                out[row, place, head] = weights / total @ v[row, seen, group]
    return out
