"""The main journey: a job loses each of its slices in turn, shrinks, resumes, grows back, and ends undisturbed.

Its loss curve must equal that of a run without faults.
"""

import pytest

from e2e.history import committed_curve, read_metrics
from e2e.node_faults import power_off_nodes, slice_nodes
from e2e.product import Job, Product, load_example
from e2e.status import condition, generation_of, is_full, step_of, steps_trained

pytestmark = pytest.mark.cluster

# Three times the goals of `make bench-demo` (40, 20 and 60 seconds), for a busy machine.
FIRST_STEP_SECONDS = 120
SHRINK_SECONDS = 60
GROW_SECONDS = 180
MAX_CURVE_DIFFERENCE = 1e-3
MANY_STEPS = 100_000
STEPS_AFTER = 50
"""Steps trained after all slices are back, in which damage from a loss would show."""
# The learning rate must not depend on the number of steps, which is set only after the losses.
JOB = {"metrics__everySteps": 1, "schedule": {"type": "constant", "warmup": 15}}


@pytest.fixture(scope="module")
def namespace(product: Product):
    with product.namespace("journey-training") as name:
        yield name


@pytest.fixture(scope="module")
def disturbed(product: Product, namespace: str) -> Job:
    """Train the demo through the loss and return of slice 1 and then of slice 0; then set its last step."""
    job = product.submit(namespace, load_example("demo", **JOB, training__steps=MANY_STEPS), name="disturbed")
    job.wait_for_step(1, timeout=FIRST_STEP_SECONDS)
    for slice_number in (1, 0):
        lose_and_restore_slice(product, job, slice_number)
    job.patch({"training": {"steps": step_of(job.status()) + STEPS_AFTER}})
    job.wait_for_phase("Succeeded", timeout=600)
    return job


def lose_and_restore_slice(product: Product, job: Job, slice_number: int) -> None:
    """Power off a slice's nodes during training. The other pods must survive; then the slice returns."""
    job.wait("training on both slices", is_full, timeout=GROW_SECONDS)
    before = job.status()
    pods = job.pods()
    lost_nodes = slice_nodes(job, slice_number)
    survivors = {name: pod["metadata"]["uid"] for name, pod in pods.items() if node_of(pod) not in lost_nodes}
    assert survivors

    with power_off_nodes(product.cluster, lost_nodes):
        job.wait(
            f"a new step without slice {slice_number}",
            lambda status: (
                generation_of(status) > generation_of(before)
                and status["display"]["slices"] == "1/2"
                and steps_trained(status) > 0
            ),
            timeout=SHRINK_SECONDS,
        )
        assert condition(job.status(), "Degraded")["status"] == "True"
        now = job.pods()
        assert {name: now[name]["metadata"]["uid"] for name in survivors} == survivors

    job.wait("both slices again", is_full, timeout=GROW_SECONDS)
    grown = job.wait("the grown world's step", lambda status: status["attempts"][-1].get("firstStep") is not None, 60)
    assert grown["attempts"][-1].get("lostSteps", 0) == 0


def node_of(pod: dict) -> str:
    return pod["spec"].get("nodeName", "")


def test_each_loss_is_one_attempt_with_its_cause(disturbed: Job) -> None:
    attempts = disturbed.status()["attempts"]

    assert [attempt["slices"] for attempt in attempts] == [2, 1, 2, 1, 2, 2]
    assert attempts[4]["cause"]["reason"] == "Edited"
    causes = [attempt["cause"] for attempt in (attempts[0], attempts[2])]
    assert [cause["slice"] for cause in causes] == [1, 0], causes
    restarts = disturbed.status()["restarts"]
    assert (restarts["total"], restarts["counted"], restarts["sinceCommit"]) == (2, 0, 0)


def test_every_step_is_in_the_committed_history_once(disturbed: Job, product: Product) -> None:
    status = disturbed.status()
    curve = committed_curve(read_metrics(product, disturbed), status["lineage"])

    assert sorted(curve) == list(range(1, status["progress"]["of"] + 1))


def test_every_slot_of_the_sample_order_is_used_once(disturbed: Job, product: Product) -> None:
    spec = disturbed.read()["spec"]
    curve = committed_curve(read_metrics(product, disturbed), disturbed.status()["lineage"])
    slots = [slot for step in sorted(curve) for slot in range(curve[step]["first_slot"], curve[step]["last_slot"] + 1)]

    assert slots == list(range(spec["training"]["steps"] * spec["training"]["globalBatchSize"]))


def test_the_loss_curve_equals_that_of_an_undisturbed_run(disturbed: Job, product: Product, namespace: str) -> None:
    steps = disturbed.status()["progress"]["of"]
    undisturbed = load_example("demo", **JOB, training__steps=steps, checkpoint__uri="/shared/undisturbed")
    job = product.submit(namespace, undisturbed, name="undisturbed")
    status = job.wait_for_phase("Succeeded", timeout=900)

    expected = committed_curve(read_metrics(product, job), status["lineage"])
    actual = committed_curve(read_metrics(product, disturbed), disturbed.status()["lineage"])
    differences = {step: abs(actual[step]["loss"] - expected[step]["loss"]) for step in expected}
    worst = max(differences, key=lambda step: differences[step])
    print(f"largest difference of loss: {differences[worst]:.2e} at step {worst}")  # for the final report
    assert differences[worst] <= MAX_CURVE_DIFFERENCE
