"""Jobs with code of the user: each loses the pod of slice 1, shrinks, resumes from a saved step, and grows back."""

import pytest

from e2e.history import committed_curve, read_metrics
from e2e.node_faults import slice_of
from e2e.product import EXAMPLES, Job, Manifest, Product, load_example
from e2e.status import is_full, steps_trained

pytestmark = pytest.mark.cluster
MANY_STEPS = 1_000_000
SAVE_STEPS = 20
"""Steps between the saves of all examples."""
CODE = "/shared/code"
RESOURCES = {"resources": {"cpu": "250m", "memory": "1200Mi"}}
VOLUMES = {"volumes": [{"name": "shared", "claimName": "shared", "mountPath": "/shared"}]}


@pytest.fixture(scope="module")
def namespace(product: Product):
    with product.namespace("journey-programs") as name:
        product.run_in_reader(name, "mkdir", "-p", CODE)
        for path in EXAMPLES.glob("*.py"):
            command = ("exec", "-i", "-n", name, "reader", "--", "tee", f"{CODE}/{path.name}")
            product.cluster.kubectl(*command, stdin=path.read_text())
        yield name


def lose_and_regain_slice(job: Job, seconds: float = 180) -> Manifest:
    """Delete the pod of slice 1 while both slices train; return the status of the world that has grown back.

    `seconds` is the maximum for each of the three worlds to start and train.
    """
    job.wait("steps on both slices", lambda status: is_full(status) and steps_trained(status) > 2 * SAVE_STEPS, seconds)
    (victim,) = (name for name, pod in job.pods().items() if slice_of(pod) == 1)
    job.cluster.kubectl("delete", "pod", victim, "-n", job.namespace, "--grace-period=0", "--force", "--wait=false")
    job.wait(
        "a world after the loss", lambda status: len(status["attempts"]) > 1 and steps_trained(status) > 0, seconds
    )
    return job.wait("both slices again", lambda status: is_full(status) and steps_trained(status) > SAVE_STEPS, seconds)


@pytest.mark.soak
def test_a_program_of_flax_and_orbax_resumes_from_its_saved_steps(product: Product, namespace: str) -> None:
    command = ["python", f"{CODE}/flax_program.py", f"--steps={MANY_STEPS}"]
    manifest = load_example("flax-program", program={"command": command}, runtime=RESOURCES | VOLUMES)
    job = product.submit(namespace, manifest)
    attempts = lose_and_regain_slice(job)["attempts"]
    job.delete()

    # A world that is asked to leave before the pod is gone saves between the regular steps.
    assert attempts[1]["firstStep"] > 0
    # A save goes on in the background for many of these short steps.
    assert attempts[0]["lastStep"] - attempts[1]["firstStep"] == attempts[1]["lostSteps"] <= 10 * SAVE_STEPS
    # The program saves its newest step when it is asked to leave.
    assert (attempts[-1]["firstStep"], attempts[-1]["lostSteps"]) == (attempts[-2]["lastStep"], 0)


@pytest.mark.soak
def test_the_trainer_with_the_loss_of_a_user_keeps_its_curve(product: Product, namespace: str) -> None:
    manifest = load_example(
        "entrypoint",
        training__steps=MANY_STEPS,
        program__workingDirectory=CODE,
        metrics={"everySteps": 1},
        runtime=RESOURCES | VOLUMES,
    )
    job = product.submit(namespace, manifest)
    status = lose_and_regain_slice(job)
    curve = committed_curve(read_metrics(product, job), status["lineage"])
    job.delete()

    assert status["attempts"][-1]["lostSteps"] == 0
    assert sorted(curve) == list(range(1, max(curve) + 1))
    assert curve[max(curve)]["loss"] < curve[1]["loss"] - 0.5
