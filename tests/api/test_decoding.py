"""The batch of all text samples of a job, and the memory of its cache."""

from typing import Any

import pytest

from trainingjob_api.decoding import (
    MESSAGE_TOKENS,
    TEMPLATE_TOKENS,
    DecodingShape,
    count_cache_bytes,
    find_decoding_shape,
    list_samples,
)
from trainingjob_api.network.latent_attention import Latent
from trainingjob_api.network.layers import LayerKind, Layers
from trainingjob_api.network.part import Shard
from trainingjob_api.network.resolve import resolve
from trainingjob_api.sample import SAMPLE
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.tokenizer import Tokenizer

MODEL = Model(vocab_size=64, embed_dim=16, mlp_dim=24, num_layers=4, num_heads=4, num_kv_heads=2, head_dim=8)
SHAPE = DecodingShape(2, 10)
KEYS = 2 * 10 * 4 * 2 * (2 * 8) * 4
"""Bytes of keys and values: rows, tokens, layers, both, heads, float32."""


def spec_with(evaluation: list[dict[str, Any]], **model: Any) -> TrainingJobSpec:
    base = {"name": "held-out", "path": "/text", "everySteps": 10}
    changed = SAMPLE | {
        "evaluation": [base | one for one in evaluation],
        "model": SAMPLE["model"] | model,
        "tokenizer": {},
    }
    return TrainingJobSpec.model_validate(changed)


def test_a_prompt_may_begin_with_a_token_of_the_tokenizer() -> None:
    spec = spec_with([{"samples": [{"prompt": "abc", "maxTokens": 5}]}])
    folder = spec.model_copy(update={"tokenizer": Tokenizer(type="huggingFace", path="/model")})

    assert [find_decoding_shape(one) for one in (spec, folder)] == [DecodingShape(1, 9), DecodingShape(1, 10)]


def test_a_conversation_has_the_tokens_that_its_template_may_add() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "H\u00e9!"}]
    spec = spec_with([{"samples": [{"messages": messages, "maxTokens": 5}]}])

    tokens = len("systemBe brief.") + len("userH!") + 2 + 2 * MESSAGE_TOKENS + TEMPLATE_TOKENS
    assert find_decoding_shape(spec) == DecodingShape(1, tokens + 5)


def test_all_samples_of_a_job_are_rows_of_one_batch() -> None:
    spec = spec_with(
        [
            {"samples": [{"prompt": "abc", "maxTokens": 5}]},
            {"name": "b"},
            {"name": "c", "samples": [{"prompt": "a"}, {"prompt": "\u00e9\u00e9", "maxTokens": 100}]},
        ]
    )

    assert find_decoding_shape(spec) == DecodingShape(3, 4 + 1 + 100)  # two letters of two bytes, and a space
    assert [placed.path for placed in list_samples(spec)] == [
        "spec.evaluation[0].samples[0]",
        "spec.evaluation[2].samples[0]",
        "spec.evaluation[2].samples[1]",
    ]
    assert find_decoding_shape(spec_with([{}])) is None


def test_a_batch_is_at_most_as_long_as_the_table_of_positions() -> None:
    spec = spec_with([{"samples": [{"prompt": "abc", "maxTokens": 50}]}], positions="learned", maxPositions=32)

    assert find_decoding_shape(spec) == DecodingShape(1, 32)


DEGREES = {
    "one device": ({}, KEYS),
    "tensor splits key heads": ({"tensor": 2}, KEYS // 2),
    "more devices than key heads": ({"tensor": 4}, KEYS),
    "fsdp splits rows": ({"fsdp": 2}, KEYS // 2),
    "more devices than rows": ({"fsdp": 4}, KEYS),
    "stages split layers": ({"stage": 4}, KEYS // 4),
    "context splits nothing": ({"context": 2}, KEYS),
}


@pytest.mark.parametrize(("degrees", "want"), DEGREES.values(), ids=DEGREES)
def test_the_cache_has_the_keys_and_values_of_a_device(degrees: dict[Any, int], want: int) -> None:
    assert count_cache_bytes(resolve(MODEL), SHAPE, Shard(10, 4, degrees)) == want


def test_latent_attention_caches_one_vector_a_token() -> None:
    latent = Latent(key_value_rank=12, rope_dim=4, no_rope_dim=8, value_dim=8)
    model = MODEL.model_copy(update={"latent_attention": latent, "num_kv_heads": None, "head_dim": None})

    assert count_cache_bytes(resolve(model), SHAPE, Shard(10, 2, {"tensor": 4})) == 2 * 10 * 4 * (12 + 4) * 2


def test_layers_of_each_kind_are_counted() -> None:
    layers = Layers(leading=(LayerKind(),), pattern=(LayerKind(attention="full"), LayerKind(positions="none")))

    network = resolve(MODEL.model_copy(update={"layers": layers}))

    assert len(network.groups) > 1
    assert count_cache_bytes(network, SHAPE, Shard(10, 4, {})) == KEYS
