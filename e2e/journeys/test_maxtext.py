"""MaxText, unchanged and in its own image, trains on two slices, loses one, resumes from its checkpoint and grows back.

Its image is built at the first run: about 2 GB of packages. Two busy cores import and compile MaxText for minutes.
"""

import pytest

from e2e.cluster.images import maxtext_recipe
from e2e.cluster.local import LocalCluster
from e2e.journeys.test_programs import CODE, MANY_STEPS, SAVE_STEPS, VOLUMES, lose_and_regain_slice
from e2e.product import EXAMPLES, Product, load_example

pytestmark = pytest.mark.soak

PROGRAM = EXAMPLES / "maxtext_program.py"
WORLD_SECONDS = 900
"""Maximum seconds for a world to import, compile, restore and train."""


def test_maxtext_resumes_from_its_checkpoint(product: Product) -> None:
    cluster = product.cluster
    if not isinstance(cluster, LocalCluster):
        pytest.skip(f"the image of MaxText is not built for the {cluster.name} cluster")
    cluster.add_image(maxtext_recipe(), cluster.worker_nodes())
    with product.namespace("journey-maxtext") as namespace:
        product.run_in_reader(namespace, "mkdir", "-p", CODE)
        target = f"{CODE}/{PROGRAM.name}"
        cluster.kubectl("exec", "-i", "-n", namespace, "reader", "--", "tee", target, stdin=PROGRAM.read_text())
        manifest = load_example("maxtext")
        program, runtime = manifest["spec"]["program"], manifest["spec"]["runtime"]
        program["command"] = [
            {"/code/maxtext_program.py": target, "steps=2000": f"steps={MANY_STEPS}"}.get(argument, argument)
            for argument in program["command"]
        ]
        program["steps"] = MANY_STEPS
        manifest["spec"]["runtime"] = runtime | VOLUMES
        job = product.submit(namespace, manifest)
        attempts = lose_and_regain_slice(job, WORLD_SECONDS)["attempts"]
        job.delete()

    assert attempts[1]["firstStep"] >= SAVE_STEPS
    assert attempts[0]["lastStep"] - attempts[1]["firstStep"] == attempts[1]["lostSteps"]
    assert attempts[-1]["firstStep"] >= attempts[1]["firstStep"]
