"""Drills as a job's owner orders them: what is done is done for real, and what it cost is told."""

import pytest

from e2e.product import Job, Manifest, Product, load_example
from e2e.status import is_full, steps_trained

pytestmark = pytest.mark.cluster

PATIENCE_SECONDS = 180
SNAPSHOTS_EVERY = 5
HANG_SECONDS = 10


@pytest.fixture(scope="module")
def job(product: Product):
    """Return a job that trains on until it is deleted, and keeps snapshots."""
    with product.namespace("journey-drills") as namespace:
        manifest = load_example(
            "demo",
            metrics__everySteps=1,
            training__steps=1_000_000,
            checkpoint__save__everySteps=200,
            checkpoint__snapshots={"everySteps": SNAPSHOTS_EVERY},
            elastic__growCooldown="1s",
            elastic__hangAfter=f"{HANG_SECONDS}s",
            elastic__drills="allowed",
        )
        job = product.submit(namespace, manifest, name="drilled")
        yield job
        job.delete()


def drill(job: Job, kind: str, *words: str) -> tuple[Manifest, str, Manifest]:
    """Order a drill of a job that trains on both slices; return its status, what was printed, and the next attempt."""

    def has_snapshots(status: Manifest) -> bool:
        return is_full(status) and steps_trained(status) > 3 * SNAPSHOTS_EVERY

    before = job.wait("some snapshots of both slices", has_snapshots, PATIENCE_SECONDS)["attempts"][-1]
    text = job.command("drill", kind, *words)
    status = job.status()
    after = next((one for one in status["attempts"] if one["generation"] > before["generation"]), {})
    return status["drills"][-1], text, after


def test_a_killed_slice_costs_a_few_steps_and_memory_holds_the_rest(job: Job) -> None:
    done, text, after = drill(job, "kill-slice", "--slice", "1")

    assert (done["state"], done["slice"], after["slices"]) == ("recovered", 1, 1)
    assert (after["tier"], after["lostSteps"] <= SNAPSHOTS_EVERY + 1) == ("ram", True)
    assert done["recoverySeconds"] > 0
    assert "from memory, " in text
    assert job.status()["restarts"]["counted"] == 0


def test_a_preempted_slice_costs_no_step(job: Job) -> None:
    done, _, after = drill(job, "preempt")

    assert (done["state"], after["slices"]) == ("recovered", 1)
    assert after.get("lostSteps", 0) == 0


def test_a_hanging_host_is_named_and_started_again(job: Job) -> None:
    done, text, after = drill(job, "hang", "--slice", "0", "--host", "1")

    assert (done["state"], done["cause"], after["slices"]) == ("recovered", "HungHost", 2)
    assert "host 1 of slice 0" in text
    assert job.status()["restarts"]["counted"] == 0


def test_a_host_that_is_cut_off_from_the_operator_trains_on(job: Job) -> None:
    done, _, after = drill(job, "partition", "--seconds", "12")

    assert done["state"] == "withstood"
    assert after == {}
