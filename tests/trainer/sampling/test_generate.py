"""Generated text: it is that of the whole sequence on every mesh, and random tokens depend on their key alone."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.training import ONE, initial_state, spec_with
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.decoding import DecodingShape
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import Layout
from trainingjob_trainer.hlo_analysis.data_order import find_unordered_collectives
from trainingjob_trainer.hlo_analysis.parser import HloProgram
from trainingjob_trainer.models.decoder import Params, split_model_of
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.sampling.generate import Prompt, Randomness, generate
from trainingjob_trainer.sampling.token_programs import MAX_PART_TOKENS, TextGenerator, TokenPrograms, decoding_model
from trainingjob_trainer.state import Signal
from trainingjob_trainer.step import StepPrograms

LONG = tuple(int(token) for token in np.random.default_rng(3).integers(0, 257, MAX_PART_TOKENS + 6))
PROMPTS = {0: Prompt(LONG, 4), 1: Prompt(LONG[:-3], 7), 3: Prompt(LONG[1:], 2)}
"""Rows that begin to generate at different positions. Row 2 has no prompt."""
FIXED = Randomness(0, 0)
SHAPE = DecodingShape(4, len(LONG) + 8)
EXPERTS = {"model__experts": {"count": 4, "perToken": 2, "groupLength": 8, "dispatch": "dropless"}}
LATENT = {
    "model__numKvHeads": None,
    "model__headDim": None,
    "model__latentAttention": {"keyValueRank": 8, "ropeDim": 4, "noRopeDim": 4, "valueDim": 8},
}


class Uncached:
    """In place of the compile cache. It records each program's text."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def compile_or_load(self, name: str, function: Any, arguments: Any, result: Any, **options: Any) -> Any:
        compiled = jax.jit(function, **options).lower(*arguments).compile()
        assert jax.tree.structure(result) == jax.tree.structure(jax.eval_shape(function, *arguments))
        self.texts[name] = compiled.as_text()
        return compiled


class Writer:
    """Generation of text on a layout."""

    def __init__(self, spec: TrainingJobSpec, layout: Layout, shape: DecodingShape = SHAPE) -> None:
        mesh = build_mesh(jax.devices()[: layout.num_devices], layout)
        steps = StepPrograms(spec, mesh)
        self.compiler: Any = Uncached()
        generator = TextGenerator(decoding_model(split_model_of(spec)), steps.state_shapes.params, mesh, shape)
        self.programs: TokenPrograms = generator.compile(self.compiler)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, steps.state_shapes.params)
        self.params: Params = jax.device_put(initial_state(spec.model_dump_json()).params, shardings)
        self.steps = steps

    def write(
        self, prompts: dict[int, Prompt], randomness: Randomness = FIXED, ends: tuple[int, ...] = ()
    ) -> tuple[dict[int, list[int]], list[tuple[int, int]]]:
        said: list[tuple[int, int]] = []
        texts = generate(
            self.programs,
            self.params,
            prompts,
            randomness,
            ends=ends,
            signals=lambda: self.steps.signals(Signal.NONE),
            on_token=lambda row, token: said.append((row, token)),
        )
        assert texts is not None
        return texts, said


@cache
def expected(changes: str) -> dict[int, list[int]]:
    """Return the most likely tokens by the logits of whole sequences on one device."""
    spec = CASES[changes]
    model = decoding_model(split_model_of(spec))
    params = initial_state(spec.model_dump_json()).params
    run = jax.jit(model.apply)
    texts = {}
    for row, prompt in PROMPTS.items():
        ids = list(prompt.ids)
        for _ in range(prompt.max_tokens):
            padded = np.zeros(SHAPE.length, np.int32)
            padded[: len(ids)] = ids
            ids.append(int(jnp.argmax(run(params, padded[None])[0, len(ids) - 1])))
        texts[row] = ids[len(prompt.ids) :]
    return texts


CASES = {
    "dense": spec_with(),
    "four layers": spec_with(model__numLayers=4),
    "experts": spec_with(**EXPERTS),
    "latent": spec_with(**LATENT),
}
PIPELINED = "2 stages, fsdp 2, tensor 2, 4 microbatches"


@pytest.mark.thorough
@each("layout", LAYOUTS, PIPELINED)
def test_the_most_likely_tokens_are_those_of_the_whole_sequence(layout: Layout) -> None:
    writer = Writer(CASES["dense"], layout)

    texts, said = writer.write(PROMPTS)

    assert texts == expected("dense")
    assert {row: [token for place, token in said if place == row] for row in texts} == texts
    for name, text in writer.compiler.texts.items():
        assert not list(find_unordered_collectives(HloProgram(text))), name


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["one device", PIPELINED, "data 2 over slices, fsdp 2, context 2"])
@pytest.mark.parametrize("case", ["experts", "latent"])
def test_experts_and_latent_attention_write_the_same_on_each_mesh(case: str, layout: str) -> None:
    assert Writer(CASES[case], LAYOUTS[layout]).write(PROMPTS)[0] == expected(case)


ARRANGED: dict[str, tuple[dict[str, Any], str]] = {
    "a sharded stream": (
        {"parallelism__shardStreamOverTensor": True},
        "data 2, fsdp 2, tensor 2, accumulation 2",
    ),
    "a circular pipeline": ({"parallelism__pipeline": {"schedule": "circular", "repeats": 2}}, PIPELINED),
    "a ring": ({"parallelism__context": {"exchange": "ring"}}, "data 2 over slices, fsdp 2, context 2"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "layout"), ARRANGED.values(), ids=ARRANGED)
def test_how_training_arranges_its_work_changes_no_text(changes: dict[str, Any], layout: str) -> None:
    spec = spec_with(model__numLayers=4, **changes)

    assert Writer(spec, LAYOUTS[layout]).write(PROMPTS)[0] == expected("four layers")


@pytest.mark.thorough
def test_random_tokens_depend_on_seed_step_row_and_position_alone() -> None:
    prompts = {row: Prompt(LONG[:5], 6, temperature=1.0) for row in (0, 1)}
    alone, sharded = (Writer(CASES["dense"], LAYOUTS[name]) for name in ("one device", "fsdp 8"))

    first, _ = alone.write(prompts, Randomness(1, 2))

    assert sharded.write(prompts, Randomness(1, 2))[0] == first
    assert alone.write({1: prompts[1]}, Randomness(1, 2))[0] == {1: first[1]}
    assert first[0] != first[1]
    assert (
        len({tuple(alone.write(prompts, one)[0][0]) for one in (Randomness(1, 2), Randomness(2, 2), Randomness(1, 3))})
        == 3
    )


def test_a_low_temperature_prefers_likely_tokens() -> None:
    writer = Writer(CASES["dense"], ONE)
    likely, _ = writer.write({0: Prompt(LONG[:5], 6)})

    assert writer.write({0: Prompt(LONG[:5], 6, temperature=1e-4)})[0] == likely
    assert writer.write({0: Prompt(LONG[:5], 6, temperature=10.0)})[0] != likely


def test_a_text_ends_with_the_end_of_document() -> None:
    writer = Writer(CASES["dense"], ONE)
    texts, _ = writer.write(PROMPTS)
    end = texts[1][3]

    shorter, said = writer.write(PROMPTS, ends=(end,))

    assert shorter[1] == texts[1][: texts[1].index(end)]
    assert end not in [token for _, token in said]


def test_a_signal_interrupts_all_texts() -> None:
    writer = Writer(CASES["dense"], ONE)
    signals = [Signal.NONE, Signal.NONE, Signal.EXIT]
    said: list[int] = []

    texts = generate(
        writer.programs,
        writer.params,
        {0: Prompt(LONG[:1], 9)},
        Randomness(0, 0),
        ends=(),
        signals=lambda: writer.steps.signals(signals.pop(0)),
        on_token=lambda _, token: said.append(token),
    )

    assert texts is None
    assert len(said) == 2


def test_texts_differ_so_that_a_wrong_position_would_show() -> None:
    assert len({token for text in expected("dense").values() for token in text}) > 3


def test_rows_may_be_shorter_than_a_part_of_the_prompts() -> None:
    writer = Writer(CASES["dense"], ONE, DecodingShape(1, 12))

    texts, _ = writer.write({0: Prompt(LONG[:4], 8)})

    assert len(texts[0]) == 8
