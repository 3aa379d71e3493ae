"""The previous release on the local cluster: its chart, its CRD and its images, from a commit of this repository."""

import os
from pathlib import Path

from e2e.cluster.images import SOURCES, Recipe
from e2e.cluster.local import LocalCluster
from e2e.cluster.paths import CHECKOUT, cache_dir
from e2e.cluster.run_program import run
from e2e.product import Product

COMMIT = os.environ.get("PREVIOUS_RELEASE", "cb3df6dc")
"""Commit of the previous release, or another one whose operator must be replaced by this one."""


def prepare_previous_release(cluster: LocalCluster) -> Product:
    """Build the previous release, load its images into all nodes, and return it. It is not installed yet.

    Raises:
        ClusterError: the commit is unknown, or an image cannot be built.
    """
    source = _extract()
    values = {}
    for folder, prefix in (("operator", ""), ("trainer", "trainer.")):
        is_operator = folder == "operator"
        # The documented upgrade changes only the tag of the operator's image.
        repository = cluster.operator_image.rpartition(":")[0] if is_operator else "localhost/previous-trainer"
        inputs = (*(path for path in SOURCES if (source / path).exists()), f"{folder}/requirements.lock")
        recipe = Recipe(f"{repository}:{COMMIT}", source / folder / "Containerfile", source, inputs, has_base=True)
        workers = set(cluster.worker_nodes())
        cluster.add_image(recipe, [node for node in cluster.node_names() if (node in workers) != is_operator])
        values |= {f"{prefix}image.repository": repository, f"{prefix}image.tag": COMMIT}
    return Product(cluster, values, source / "charts/trainingjob")


def _extract() -> Path:
    """Return a folder with the files of the commit."""
    folder = cache_dir() / f"release-{COMMIT}"
    if not folder.exists():
        scratch = folder.with_suffix(".new")
        scratch.mkdir(parents=True, exist_ok=True)
        archive = scratch.with_suffix(".tar")
        run(["git", "-C", str(CHECKOUT), "archive", f"--output={archive}", COMMIT])
        run(["tar", "-x", "-f", str(archive), "-C", str(scratch)])
        archive.unlink()
        scratch.rename(folder)
    return folder
