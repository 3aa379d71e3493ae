"""Pretrain a small model on real text and tune it on conversations, on a real cluster that loses a slice during each.

`python -m e2e.recipe` trains each job twice: one loses a slice and gets it back, the other is undisturbed. It compares
their curves, draws them below `docs/images`, and copies the tuned model to `build/recipe/tuned`. With `--resume`, jobs
that have succeeded on the running cluster are not trained again.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import yaml
from rich.console import Console

from e2e.demo import FIRST_STEP_TIMEOUT, StatusPrinter, lose_and_restore_slice, prepare
from e2e.history import read_metrics
from e2e.product import ROOT, Job, JourneyError, Manifest, Product, change
from e2e.recipe.curves import Training, largest_difference, read_training
from e2e.recipe.figure import draw

NAMESPACE = "recipe"
JOBS = ("pretrain", "pretrain-undisturbed", "tune", "tune-undisturbed")
HERE = Path(__file__).parent
IMAGES = ROOT / "docs/images"
RESULTS = ROOT / "build/recipe"
MAX_DIFFERENCE = 1e-3
"""Between the losses of two jobs at one step: sums of another number of slices round differently."""
PREPARATION_TIMEOUT = 900
END_TIMEOUT = 3600


def main() -> int:
    """Run the recipe, leave the cluster running, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m e2e.recipe", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--resume", action="store_true", help="keep the text, and the jobs that have succeeded")
    keeps = parser.parse_args().resume
    console = Console()
    _, product = prepare(console)
    product.make_namespace(NAMESPACE)
    for name in JOBS:
        if not (keeps and has_succeeded(Job(product.cluster, NAMESPACE, name))):
            product.cluster.kubectl("delete", "trainingjob", name, "-n", NAMESPACE, "--ignore-not-found")
            product.run_in_reader(NAMESPACE, "rm", "-rf", f"/shared/{name}", f"/shared/{name}-hf")
    if not keeps:
        console.rule("text")
        product.run_in_reader(NAMESPACE, "find", "/shared", "-mindepth", "1", "-delete")
        console.print_json(build_text(product))
    try:
        failures = [run_twice(product, name, console) for name in ("pretrain", "tune")]
    except JourneyError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    copy_model(product)
    console.print("try it: trainingjob sample build/recipe/tuned --prompt ...", highlight=False)
    return int(any(failures))


def build_text(product: Product) -> str:
    """Write the corpus onto the shared volume, from the packages of the trainer's image; return its sizes as JSON."""
    program = (HERE / "text.py").read_text()
    arguments = ("exec", "-i", "-n", NAMESPACE, "reader", "--", "python", "-", "/shared/corpus")
    return product.cluster.kubectl(*arguments, stdin=program)


def run_twice(product: Product, name: str, console: Console) -> bool:
    """Train a job with and without the loss of a slice, and draw both; return whether their curves differ."""
    manifest: Manifest = yaml.safe_load((HERE / f"{name}.yaml").read_text())
    names = [evaluation["name"] for evaluation in manifest["spec"]["evaluation"]]
    disturbed = train(product, manifest, names, console, lost_slice=1)
    undisturbed_name = f"{name}-undisturbed"
    manifest["metadata"]["name"] = undisturbed_name
    change(
        manifest,
        {
            "checkpoint__uri": f"/shared/{undisturbed_name}",
            "checkpoint__export__huggingFace__uri": f"/shared/{undisturbed_name}-hf",
        },
    )
    undisturbed = train(product, manifest, names, console, lost_slice=None)
    draw(IMAGES / f"{name}.svg", name, disturbed, undisturbed)
    report(name, disturbed, undisturbed, console)
    return largest_difference(disturbed.loss, undisturbed.loss)[0] > MAX_DIFFERENCE


def train(
    product: Product, manifest: Manifest, evaluations: list[str], console: Console, *, lost_slice: int | None
) -> Training:
    """Run a job to its end, lose a slice on the way if one is given, and return its curves."""
    console.rule(manifest["metadata"]["name"])
    job = Job(product.cluster, NAMESPACE, manifest["metadata"]["name"])
    if has_succeeded(job):
        return keep(job, evaluations, product)
    job = product.submit(NAMESPACE, manifest)
    printer = StatusPrinter(console, job)
    printer.watch("text as tokens", lambda status: status.get("data"), PREPARATION_TIMEOUT)
    job.wait_for_step(1, FIRST_STEP_TIMEOUT)
    if lost_slice is not None:
        lose_and_restore_slice(product, job, lost_slice, printer)
    started = time.monotonic()
    job.wait_for_phase("Succeeded", END_TIMEOUT)
    console.print(f"ended after {time.monotonic() - started:.0f} s more")
    return keep(job, evaluations, product)


def has_succeeded(job: Job) -> bool:
    """Return whether a job exists and has succeeded."""
    return job.status().get("phase") == "Succeeded"


def keep(job: Job, evaluations: list[str], product: Product) -> Training:
    """Write a job's curves and its text samples below build/recipe, and return the curves."""
    training = read_training(read_metrics(product, job), job.status(), evaluations)
    RESULTS.mkdir(parents=True, exist_ok=True)
    curves = {"loss": training.loss, "evaluations": training.evaluations, "slices": training.slices}
    (RESULTS / f"{job.name}.json").write_text(json.dumps(curves))
    uri = job.read()["spec"]["checkpoint"]["uri"]
    samples = product.run_in_reader(NAMESPACE, "sh", "-c", f"cat {uri}/metrics/samples.jsonl || true")
    (RESULTS / f"{job.name}-samples.jsonl").write_text(samples)
    return training


def report(name: str, disturbed: Training, undisturbed: Training, console: Console) -> None:
    """Print where two jobs differ most, and their final losses."""
    difference, step = largest_difference(disturbed.loss, undisturbed.loss)
    console.print(f"{name}: the losses differ by at most {difference:.1e}, at step {step}")
    for evaluation, curve in disturbed.evaluations.items():
        last = max(curve)
        other = undisturbed.evaluations[evaluation][last]
        console.print(f"{name}: {evaluation} has a loss of {curve[last]:.4f}, undisturbed {other:.4f}")


def copy_model(product: Product) -> None:
    """Copy the tuned model from the shared volume to build/recipe/tuned."""
    target = RESULTS / "tuned"
    target.mkdir(parents=True, exist_ok=True)
    product.cluster.kubectl("cp", f"{NAMESPACE}/reader:/shared/tuned", str(target))


if __name__ == "__main__":
    sys.exit(main())
