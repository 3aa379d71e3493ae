"""Drills requested by a job's owner: the injected fault is real, and its cost is reported."""

import pytest

from e2e.product import Job, Manifest, Product, load_example
from e2e.status import generation_of, is_full, steps_trained

pytestmark = pytest.mark.cluster

TIMEOUT_SECONDS = 300
SNAPSHOTS_EVERY = 5
HANG_SECONDS = 10
CRASH = """
import os, pathlib, signal
for path in pathlib.Path("/proc").glob("[0-9]*"):
    if b"trainingjob_trainer.main" in path.joinpath("cmdline").read_bytes().split(bytes(1)):
        os.kill(int(path.name), signal.SIGSEGV)
"""
"""Crashes the trainers of a pod, active and standby, as a bug in a library would."""


@pytest.fixture(scope="module")
def job(product: Product):
    """Return a job that trains until it is deleted, and takes snapshots."""
    with product.namespace("journey-drills") as namespace:
        manifest = load_example(
            "demo",
            metrics__everySteps=1,
            training__steps=1_000_000,
            checkpoint__save__everySteps=200,
            checkpoint__snapshots={"everySteps": SNAPSHOTS_EVERY},
            elastic__growCooldown="1s",
            elastic__progressTimeout=f"{HANG_SECONDS}s",
            elastic__faultInjection="allowed",
        )
        job = product.submit(namespace, manifest, name="drilled")
        yield job
        job.delete()


def drill(job: Job, kind: str, *options: str) -> tuple[Manifest, str, Manifest]:
    """Run a drill on a job with both slices; return the drill's status, the printed output and the next attempt."""

    def has_snapshots(status: Manifest) -> bool:
        return is_full(status) and steps_trained(status) > 3 * SNAPSHOTS_EVERY

    before = job.wait("some snapshots of both slices", has_snapshots, TIMEOUT_SECONDS)["attempts"][-1]
    text = job.command("drill", kind, *options)
    status = job.status()
    after = next((attempt for attempt in status["attempts"] if attempt["generation"] > before["generation"]), {})
    return status["drills"][-1], text, after


def is_later(status: Manifest, before: Manifest) -> bool:
    return generation_of(status) > generation_of(before)


def test_a_killed_slice_costs_a_few_steps_and_memory_holds_the_rest(job: Job) -> None:
    done, text, after = drill(job, "kill-slice", "--slice", "1")

    assert (done["state"], done["slice"], after["slices"]) == ("recovered", 1, 1)
    assert (after["tier"], after["lostSteps"] <= SNAPSHOTS_EVERY + 1) == ("ram", True)
    assert done["recoverySeconds"] > 0
    assert "from memory, " in text
    assert job.status()["restarts"]["counted"] == 0


def test_a_preempted_slice_costs_no_step(job: Job) -> None:
    done, _, after = drill(job, "preempt")

    assert done["state"] == "recovered"
    # Kubernetes recreates the pods at once. They join the next world if they are ready before the old ones have left.
    assert after["slices"] in (1, 2)
    assert after.get("lostSteps", 0) == 0


def test_a_killed_host_is_back_in_its_slice(job: Job) -> None:
    done, _, _ = drill(job, "kill-host", "--slice", "1", "--host", "0")

    assert (done["state"], done["slice"], done["host"]) == ("recovered", 1, 0)
    assert job.status()["restarts"]["counted"] == 0


def test_a_step_that_is_not_finite_makes_no_update(job: Job) -> None:
    done, text, after = drill(job, "nan")

    assert (done["state"], after) == ("withstood", {})
    assert "1 update skipped" in text


@pytest.mark.soak
def test_a_slow_host_is_named_while_it_is_slow(job: Job) -> None:
    job.wait("both slices", is_full, TIMEOUT_SECONDS)
    job.command("drill", "slow", "--slice", "1", "--host", "1", "--seconds", "60")

    reported = job.get_json("events", "--field-selector", f"involvedObject.name={job.name},reason=SlowHost")["items"]
    assert [event for event in reported if "host 1 of slice 1" in event["message"]], reported
    job.wait("that it is not slow any more", lambda status: not status.get("straggler"), TIMEOUT_SECONDS)


def test_training_continues_without_an_operator(job: Job) -> None:
    done, _, after = drill(job, "operator-down")

    assert (done["state"], after) == ("withstood", {})


def test_a_hanging_host_is_named_and_started_again(job: Job) -> None:
    done, text, after = drill(job, "hang", "--slice", "0", "--host", "1")

    assert (done["state"], done["cause"], after["slices"]) == ("recovered", "HungHost", 2)
    assert "host 1 of slice 0" in text
    assert job.status()["restarts"]["counted"] == 0


def test_a_host_that_is_cut_off_from_the_operator_trains_on(job: Job) -> None:
    done, _, after = drill(job, "partition", "--seconds", "12")

    assert done["state"] == "withstood"
    assert after == {}


def test_a_trainer_that_crashes_is_counted_and_started_again(job: Job) -> None:
    before = job.wait("both slices", is_full, TIMEOUT_SECONDS)
    pod = min(job.pods())
    job.cluster.kubectl("exec", "-n", job.namespace, pod, "--", "python3", "-c", CRASH)

    status = job.wait("the next world", lambda status: is_full(status) and is_later(status, before), TIMEOUT_SECONDS)
    (cause,) = (
        attempt["cause"] for attempt in status["attempts"] if attempt["generation"] == before["world"]["generation"]
    )
    assert cause["reason"] == "Crash"
    assert "crashed with SIGSEGV" in cause["message"]
    assert status["restarts"]["counted"] == before["restarts"]["counted"] + 1
