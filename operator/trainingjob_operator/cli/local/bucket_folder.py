"""Folders of buckets that earlier runs have filled. A program of the trainer deletes them: it has the clients."""

import os
import subprocess
import sys
from collections.abc import Mapping

from trainingjob_operator.cli.errors import UsageError
from trainingjob_operator.core.manifests import Manifest, get_text, iter_items

PROGRAM = (sys.executable, "-P", "-m", "trainingjob_trainer.checkpoint.delete_folder")
"""The program; its arguments are the URI of a folder and the UID of the job that owns it."""


def read_literals(job: Manifest) -> dict[str, str]:
    """Return the variables of a job's pods whose values are in the spec, such as the endpoint of a store."""
    variables = iter_items(job, "spec", "runtime", "env")
    return {get_text(variable, "name"): get_text(variable, "value") for variable in variables if "value" in variable}


def delete_bucket_folder(uri: str, uid: str, variables: Mapping[str, str]) -> None:
    """Delete a folder of a bucket if the job with a UID owns it. A folder without an owner stays.

    Raises:
        UsageError: another job owns the folder, or the bucket does not respond.
    """
    completed = subprocess.run(
        (*PROGRAM, uri, uid), capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )
    if completed.returncode:
        lines = (completed.stderr or completed.stdout).strip().splitlines() or ["its program ended without an answer"]
        raise UsageError(f"{uri} cannot be deleted: {lines[-1]}")
