"""The train step: the same numbers on every mesh, and those of an independent reference."""

import logging
import re
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.distillation import distillation
from tests.support.trainer.reference import AdamW, row_losses
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import BATCH, NUM_STEPS, ONE, Run, flat, losses, numpy_tree, sequences_of, spec_with
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_trainer.models.decoder import split_model
from trainingjob_trainer.monitoring.bad_steps import is_skipped
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.state import Controls, Signal
from trainingjob_trainer.step import StepPrograms


@cache
def reference_losses() -> list[float]:
    """Return the losses of plain training: one batch at a time, no mesh, no microsteps, AdamW in NumPy."""
    spec = spec_with()
    run = Run(spec, ONE)
    model = split_model(resolve(spec.model), spec.precision, spec.memory, spec.slices.accelerator)
    params, structure = flat(run.state.params), jax.tree.structure(run.state.params)
    adam = AdamW(spec)
    seen = []

    @jax.jit
    def gradients(params: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
        def mean(params: Any) -> jax.Array:
            scores = jax.nn.log_softmax(model.apply(params, tokens[:, :-1]))
            return -jnp.mean(jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1))

        return jax.value_and_grad(mean)(params)

    for number in range(1, NUM_STEPS + 1):
        tree = jax.tree.unflatten(structure, [jnp.asarray(leaf, jnp.float32) for leaf in params.values()])
        loss, grads = gradients(tree, jnp.asarray(sequences_of(run.batch(number))[0, 0]))
        seen.append(float(loss))
        fraction = spec.schedule.final_fraction
        progress = number / NUM_STEPS
        rate = spec.optimizer.learning_rate * (fraction + (1 - fraction) * 0.5 * (1 + np.cos(np.pi * progress)))
        params = adam.update(params, flat(grads), rate)
    return seen


def test_the_forward_pass_is_that_of_the_reference() -> None:
    spec = spec_with()
    run = Run(spec, ONE)
    batch = run.batch(1)

    total, weight = run.evaluate(run.state.params, batch)

    want = [row_losses(spec, numpy_tree(run.state.params), row) for row in sequences_of(batch)[0, 0]]
    assert float(weight) == np.size(want)
    assert float(total) == pytest.approx(np.sum(want), rel=1e-5)


LAYOUTS: dict[str, Layout] = {
    "one device": ONE,
    "accumulation 4, fsdp 2": make_layout(ici=AxisDegrees(fsdp=2), rows_per_shard=1, accumulation=4),
    "fsdp 8": make_layout(devices_per_host=8, ici=AxisDegrees(fsdp=8), rows_per_shard=1),
    "data 8": make_layout(devices_per_host=8, ici=AxisDegrees(data=8), rows_per_shard=1),
    "data 2 over slices, fsdp 4": make_layout(
        num_slices=2, devices_per_host=4, ici=AxisDegrees(fsdp=4), dcn=AxisDegrees(data=2), rows_per_shard=1
    ),
    "data 2, fsdp 2, tensor 2, accumulation 2": make_layout(
        devices_per_host=8, ici=AxisDegrees(data=2, fsdp=2, tensor=2), rows_per_shard=1, accumulation=2
    ),
    "context 4, tensor 2, accumulation 2": make_layout(
        devices_per_host=8, ici=AxisDegrees(context=4, tensor=2), rows_per_shard=4, accumulation=2
    ),
    "data 2 over slices, fsdp 2, context 2": make_layout(
        num_slices=2, devices_per_host=4, ici=AxisDegrees(fsdp=2, context=2), dcn=AxisDegrees(data=2), rows_per_shard=2
    ),
    "2 stages, fsdp 2, tensor 2, 4 microbatches": make_layout(
        devices_per_host=8, ici=AxisDegrees(stage=2, fsdp=2, tensor=2), rows_per_shard=1, microbatches=4
    ),
    "data 2 over slices, 2 stages, context 2, accumulation 2": make_layout(
        num_slices=2,
        devices_per_host=4,
        ici=AxisDegrees(stage=2, context=2),
        dcn=AxisDegrees(data=2),
        rows_per_shard=1,
        microbatches=2,
        accumulation=2,
    ),
    "fsdp over slices, 6 shards, accumulation 2, padding": make_layout(
        num_slices=2,
        devices_per_host=3,
        ici=AxisDegrees(data=3),
        dcn=AxisDegrees(fsdp=2),
        rows_per_shard=1,
        accumulation=2,
        padding_rows=4,
    ),
}
PADDED = "fsdp over slices, 6 shards, accumulation 2, padding"


@pytest.mark.thorough
@each("layout", LAYOUTS, "data 2 over slices, fsdp 4")
def test_the_loss_curve_does_not_depend_on_the_layout(layout: Layout) -> None:
    assert losses(spec_with(), layout) == pytest.approx(reference_losses(), abs=1e-4)


DECLARED: dict[str, dict[str, Any]] = {
    "dense": {},
    "experts": {"model__experts": {"count": 4, "perToken": 2}},
    "isolated documents": {"data__packing": {"type": "bestFit"}},
    "a teacher": {"objective": distillation()},
    "spike detection": {"protection__spikes": {"sigma": 6, "window": 8}},
}


@pytest.mark.thorough
@pytest.mark.parametrize("changes", DECLARED.values(), ids=DECLARED)
def test_the_step_returns_what_its_signature_declares(changes: dict[str, Any]) -> None:
    """A program that is loaded is not traced: its results are put into the declared structure."""
    steps = Run(spec_with(**changes), ONE).steps
    arguments, declared = steps._train_signature((1, 1, BATCH))

    assert jax.tree.structure(jax.eval_shape(steps.train, *arguments)) == jax.tree.structure(declared)


def test_the_kernels_of_the_layers_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    StepPrograms(spec_with(training__sequenceLength=1024), build_mesh(jax.devices()[:1], ONE)).log_kernels()

    reason = "the memory of all scores grows with the square of 1,024 tokens"
    assert caplog.messages == [f"kernel part=attention name=chunked reason='{reason}'"]


VARIANTS: dict[str, dict[str, Any]] = {
    "layers computed again": {"memory__remat": "full"},
    "logits in chunks": {"memory__lossChunks": 3},
}


@each("changes", VARIANTS)
def test_memory_settings_change_no_number(changes: dict[str, Any]) -> None:
    assert losses(spec_with(**changes), ONE) == pytest.approx(reference_losses(), abs=1e-4)


@pytest.mark.slow
def test_bfloat16_stays_close_with_moments_in_float32() -> None:
    spec = spec_with(precision={"compute": "bfloat16", "params": "bfloat16"})
    run = Run(spec, LAYOUTS["data 2, fsdp 2, tensor 2, accumulation 2"])

    seen = [float(measures.loss) for measures in run.train()]

    assert seen == pytest.approx(reference_losses(), abs=0.1)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(run.state.params)} == {"bfloat16"}
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(run.state.opt) if leaf.ndim} == {"float32"}


@pytest.mark.thorough
def test_tied_embeddings_are_the_head() -> None:
    spec = spec_with(model__tieEmbeddings=True)
    run = Run(spec, LAYOUTS["data 2, fsdp 2, tensor 2, accumulation 2"])
    batch = run.batch(1)

    total, _ = run.evaluate(run.state.params, batch)

    rows = sequences_of(batch).reshape(BATCH, -1)
    want = [row_losses(spec, numpy_tree(run.state.params), row) for row in rows]
    assert "head" not in run.state.params
    assert float(total) == pytest.approx(np.sum(want), rel=1e-5)


@pytest.mark.parametrize("name", ["fsdp 8", "data 2, fsdp 2, tensor 2, accumulation 2"])
def test_initial_parameters_do_not_depend_on_the_mesh(name: str) -> None:
    run = Run(spec_with(), LAYOUTS[name])
    shardings = jax.tree.map(lambda leaf: leaf.sharding, run.steps.state_shapes)

    one, many = flat(run.state.params), flat(jax.jit(run.steps.init, out_shardings=shardings)().params)

    assert all((one[path] == many[path]).all() for path in one)


def test_initial_parameters_depend_on_the_seed_and_differ_from_layer_to_layer() -> None:
    params = flat(Run(spec_with(), ONE).state.params)
    other = flat(Run(spec_with(training__seed=6), ONE).state.params)
    query = params["['layers']['attention']['query']"]

    assert not (query == other["['layers']['attention']['query']"]).any()
    assert not (query[0] == query[1]).any()


def test_state_is_sharded_by_its_logical_axes() -> None:
    state = Run(spec_with(), LAYOUTS["data 2, fsdp 2, tensor 2, accumulation 2"]).state

    for tree in (state.params, state.opt[1].mu, state.opt[1].nu):
        assert tree["layers"]["mlp"]["gate"].addressable_shards[0].data.shape == (2, 8, 16)
        assert tree["layers"]["attention"]["out"].addressable_shards[0].data.shape == (2, 2, 8, 8)
        assert tree["norm"]["scale"].addressable_shards[0].data.shape == (16,)


def test_a_dim_that_its_axis_does_not_divide_is_whole_everywhere() -> None:
    state = Run(spec_with(model__vocabSize=257), LAYOUTS["data 2, fsdp 2, tensor 2, accumulation 2"]).state

    assert state.params["embedding"].addressable_shards[0].data.shape == (257, 8)


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["data", "fsdp"])
def test_device_has_only_the_activations_of_its_rows(axis: str) -> None:
    larger = {"training__sequenceLength": 64, "model__embedDim": 32, "model__mlpDim": 128}
    alone = Run(
        spec_with(training__globalBatchSize=4, **larger),
        make_layout(devices_per_host=1, ici=AxisDegrees(), rows_per_shard=4),
    )
    layout = make_layout(devices_per_host=8, ici=AxisDegrees.model_validate({axis: 8}), rows_per_shard=4)
    together = Run(spec_with(training__globalBatchSize=32, **larger), layout)

    assert temporary_bytes(together) < 1.5 * temporary_bytes(alone)


def temporary_bytes(run: Run) -> int:
    step = run.step.lower(run.state, run.batch(1), run.controls()).compile()
    return int(step.memory_analysis().temp_size_in_bytes)


@pytest.mark.thorough
def test_gradients_cross_the_data_axis_once_a_step() -> None:
    layout = make_layout(
        num_slices=2, ici=AxisDegrees(fsdp=2), dcn=AxisDegrees(data=2), rows_per_shard=1, accumulation=2
    )
    run = Run(spec_with(), layout)
    program = run.step.lower(run.state, run.batch(1), run.controls()).compile().as_text()

    inside_loops, outside = [], []
    for computation in re.split(r"\n(?=\S)", program):
        reductions = [line for line in computation.splitlines() if " all-reduce(" in line]
        over_data = [line for line in reductions if crosses_slices(line)]
        (outside if computation.startswith("ENTRY") else inside_loops).extend(over_data)

    assert inside_loops == []
    assert outside


def crosses_slices(line: str) -> bool:
    """Return whether a reduction joins devices 0, 1 (slice 0) with 2, 3 (slice 1). XLA has three notations."""
    if named := re.search(r"replica_groups=mesh\[.*?\] ?\{(.*?)\}", line):
        return "'data'" in named[1]
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        group = [int(number) for number in listed[1].split(",")]
        return len({device // 2 for device in group}) > 1
    iota = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    assert iota, line
    shape = [int(size) for size in iota[3].split(",")]
    order = [int(axis) for axis in iota[4].split(",")] if iota[4] else list(range(len(shape)))
    grid = np.arange(np.prod(shape)).reshape(shape).transpose(order).reshape(int(iota[1]), int(iota[2]))
    return len({device // 2 for device in grid[0].tolist()}) > 1


def test_a_step_without_a_finite_loss_changes_nothing_and_is_counted() -> None:
    run = Run(spec_with(), ONE)
    next(run.train(1))
    broken = jax.tree.map(lambda leaf: leaf, run.state.params) | {"embedding": run.state.params["embedding"] * jnp.inf}
    run.state = run.state._replace(params=broken)
    before = flat((run.state.params, run.state.opt))

    measures = list(run.train(2))

    after = flat((run.state.params, run.state.opt))
    assert [int(one.non_finite) for one in measures] == [1, 2]
    assert (int(run.state.step), int(run.state.skipped)) == (3, 2)
    assert all(np.array_equal(before[path], after[path], equal_nan=True) for path in before)


def test_training_recovers_after_a_skipped_step() -> None:
    run = Run(spec_with(), ONE)
    whole = run.state.params["embedding"]
    run.state = run.state._replace(params=run.state.params | {"embedding": whole * jnp.nan})
    next(run.train(1))
    run.state = run.state._replace(params=run.state.params | {"embedding": jnp.array(whole)})

    measures = next(run.train(1))

    assert (int(measures.non_finite), int(measures.skipped)) == (0, 1)
    assert np.isfinite(float(measures.loss))


def test_a_batch_without_a_loss_changes_nothing_and_is_no_failure() -> None:
    run = Run(spec_with(), ONE)
    before, batch = flat((run.state.params, run.state.opt)), run.batch(1)
    run.state = run.state._replace(non_finite=jnp.asarray(2))

    empty = batch._replace(loss_weights=jnp.zeros_like(batch.loss_weights))
    run.state, measures = run.step(run.state, empty, run.controls())

    after = flat((run.state.params, run.state.opt))
    assert (int(measures.non_finite), int(measures.skipped), int(run.state.step)) == (0, 1, 1)
    assert not is_skipped(measures)
    assert np.isnan(float(measures.loss))
    assert all(np.array_equal(before[path], after[path]) for path in before)


def ask(run: Run, *flags: int) -> Controls:
    """Return the control signals of a step in which the process of each device sends one."""
    nothing = run.controls()
    return nothing._replace(signals=jax.device_put(np.array(flags, np.int32), nothing.signals.sharding))


@pytest.mark.thorough
def test_signal_of_any_process_reaches_all() -> None:
    run = Run(spec_with(), LAYOUTS["data 8"])

    _, measures = run.step(run.state, run.batch(1), ask(run, 0, 0, 0, 1, 0, 0, 2, 3))

    assert Signal(int(measures.signals)) == Signal.EXIT | Signal.SAVE
    assert measures.signals.sharding.is_fully_replicated


def test_signal_of_any_process_at_an_evaluation_reaches_all() -> None:
    run = Run(spec_with(), LAYOUTS["data 8"])

    _, requested = run.evaluation(run.state.params, run.held_out_batch(), ask(run, 0, 0, 0, 1, 0, 0, 0, 0).signals)

    assert Signal(int(requested)) is Signal.EXIT


def test_a_step_is_poisoned_by_any_process() -> None:
    run = Run(spec_with(), LAYOUTS["data 8"])
    before = flat(run.state.params)

    state, measures = run.step(run.state, run.batch(1), ask(run, 0, 0, 0, 4, 0, 0, 0, 1))
    after = flat(state.params)
    _, next_measures = run.step(state, run.batch(2), run.controls())

    assert (int(measures.skipped), int(next_measures.skipped)) == (1, 1)
    assert np.isfinite(float(measures.loss))
    assert all(np.array_equal(before[path], after[path]) for path in before)
    assert Signal.EXIT in Signal(int(measures.signals))


@pytest.mark.parametrize(("drills", "want"), [("allowed", Signal.INJECT_NAN | Signal.SAVE), ("refused", Signal.SAVE)])
def test_nan_is_injected_only_if_drills_are_allowed(drills: str, want: Signal) -> None:
    steps = Run(spec_with(elastic={"faultInjection": drills}), ONE).steps

    assert int(steps.signals(Signal.INJECT_NAN | Signal.SAVE)[0]) == want


def test_padding_may_hold_anything() -> None:
    run = Run(spec_with(), LAYOUTS[PADDED])
    batch = run.batch(1)
    tokens = np.array(batch.tokens)
    tokens[-1, -1, -1] = 3
    changed = batch._replace(tokens=jax.device_put(tokens, batch.tokens.sharding))

    sums = [jax.tree.map(float, run.evaluate(run.state.params, one)) for one in (batch, changed)]

    assert sums[0] == sums[1]
    assert sums[0][1] == BATCH * 16
