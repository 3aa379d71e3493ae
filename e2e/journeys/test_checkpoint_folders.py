"""Restarts of a job on a checkpoint folder that is damaged, empty or owned by another job."""

from collections.abc import Iterator

import pytest

from e2e.product import Job, Product, load_example, wait_until
from e2e.status import condition

pytestmark = pytest.mark.cluster

TIMEOUT_SECONDS = 180
FOLDER = "/shared/fixed"
DAMAGE = f"""
import pathlib, sys
proofs = pathlib.Path("{FOLDER}").glob("lineage-*/*/integrity.json")
newest = sorted(proofs, key=lambda proof: int(proof.parent.name.partition(".")[0]), reverse=True)
for proof in newest[:int(sys.argv[1])]:
    files = (path for path in proof.parent.rglob("*") if path.is_file() and path != proof)
    with max(files, key=lambda path: path.stat().st_size).open("rb+") as file:
        byte = file.read(1)[0]
        file.seek(0)
        file.write(bytes([byte ^ 1]))
"""
"""Flips a bit in the largest file of each of the newest steps; the argument is their number."""
EMPTY = f"import shutil; shutil.rmtree('{FOLDER}/lineage-0')"
FAILURE_CASES = {
    "every saved step is damaged": ([DAMAGE, "99"], ["no saved step in", "has changed since it was saved"]),
    "what was saved is gone": ([EMPTY], ["no saved step in", "was saved before"]),
}


@pytest.fixture
def namespace(product: Product) -> Iterator[str]:
    with product.namespace("journey-stores") as name:
        yield name
        product.cluster.kubectl("delete", "trainingjobs", "--all", "-n", name, "--wait=true")


def save_and_suspend(product: Product, namespace: str) -> Job:
    """Return a suspended job with some saved steps. Its pods and their in-memory snapshots are gone."""
    manifest = load_example("fixed", training__steps=1_000_000, checkpoint__uri=FOLDER)
    job = product.submit(namespace, manifest, name="keeper")
    job.wait("two saved steps", lambda status: status.get("checkpoint", {}).get("step", 0) >= 40, TIMEOUT_SECONDS)
    job.patch({"suspend": True})
    job.wait("suspension", lambda status: condition(status, "Suspended").get("status") == "True", TIMEOUT_SECONDS)
    wait_until("no pods", lambda: None if job.pods() else True, TIMEOUT_SECONDS)
    return job


@pytest.mark.parametrize("case", FAILURE_CASES)
def test_training_never_begins_from_scratch_in_silence(product: Product, namespace: str, case: str) -> None:
    program, expected = FAILURE_CASES[case]
    job = save_and_suspend(product, namespace)
    product.run_in_reader(namespace, "python3", "-c", *program)

    job.patch({"suspend": False})
    status = job.wait_for_phase("Failed", TIMEOUT_SECONDS)

    failed = condition(status, "Failed")
    assert failed["reason"] == "Storage"
    assert all(text in failed["message"] for text in expected), failed["message"]


@pytest.mark.soak
def test_damaged_step_is_reported_and_training_resumes_from_the_previous_one(product: Product, namespace: str) -> None:
    job = save_and_suspend(product, namespace)
    newest = job.status()["checkpoint"]["step"]
    product.run_in_reader(namespace, "python3", "-c", DAMAGE, "1")

    job.patch({"suspend": False})
    resumed = job.wait_for_step(newest + 1, TIMEOUT_SECONDS)

    assert resumed["attempts"][-1]["firstStep"] < newest
    (event,) = job.get_json("events", "--field-selector", "reason=CheckpointDamaged")["items"]
    assert f"step {newest:,}" in event["message"], event["message"]
    assert "has changed since it was saved" in event["message"]


def test_another_job_on_the_same_folder_is_rejected_and_changes_nothing(product: Product, namespace: str) -> None:
    job = save_and_suspend(product, namespace)
    other = product.submit(namespace, load_example("fixed", checkpoint__uri=FOLDER), name="other")

    status = other.wait_for_phase("Failed", TIMEOUT_SECONDS)

    message = condition(status, "Failed")["message"]
    assert f"the folder holds the checkpoints of {namespace}/keeper" in message
    assert "spec.checkpoint.takeover" in message
    saved = job.status()["checkpoint"]["step"]
    job.patch({"suspend": False})
    job.wait_for_step(saved + 1, TIMEOUT_SECONDS)
