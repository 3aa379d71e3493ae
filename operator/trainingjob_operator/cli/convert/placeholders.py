"""Placeholders for fields that no other program's config has: slices and storage. They are valid until replaced."""

import json
import math
from typing import Any

from trainingjob_api.network.resolve import resolve
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.problem import Problem
from trainingjob_operator.cli.convert.commented_yaml import as_manifest
from trainingjob_operator.cli.convert.draft_job import (
    CHECKPOINTS_HINT,
    TEXT_FILES,
    TEXT_HINT,
    TOKENIZER,
    TOKENIZER_HINT,
    DraftJob,
)
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.planner.planning import find_slice_shape
from trainingjob_operator.core.validation.validate import validate_manifest

ACCELERATOR = "tpu-v5p"
TOPOLOGIES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16")
"""Slices to try, ascending: the first whose memory holds the job is taken."""
STATE_BYTES = 12
"""Bytes for each parameter in float32, and its two moments."""
DEFAULT_LENGTH = 4096
SLICES = (
    f"your accelerator, topology and number of slices. This is the smallest {ACCELERATOR} slice that holds the job."
)
NO_SLICES = f"your accelerator, topology and number of slices. No {ACCELERATOR} slice holds this job."


def fill_in(draft: DraftJob, catalog: Catalog) -> list[Problem]:
    """Complete a job, and return the remaining problems. Empty: it is valid."""
    if draft.get("training.epochs") is None:
        draft.set_placeholder("training.steps", 1000, "the number of optimizer steps.")
    draft.set_placeholder("training.sequenceLength", DEFAULT_LENGTH, "the number of tokens in a sequence.")
    draft.set_placeholder("optimizer.learningRate", 0.0003, "the peak learning rate.")
    draft.set_placeholder("data.train", TEXT_FILES, TEXT_HINT)
    draft.set_placeholder("tokenizer", TOKENIZER, TOKENIZER_HINT)
    draft.set_placeholder("checkpoint.uri", f"/runs/{draft.name}", CHECKPOINTS_HINT)
    volumes: list[dict[str, Any]] = [
        {"name": "data", "claimName": "data", "mountPath": "/data", "readOnly": True},
        {"name": "runs", "claimName": "runs", "mountPath": "/runs"},
    ]
    spec_json = json.dumps(draft.spec)
    used_volumes = [volume for volume in volumes if f'"{volume["mountPath"]}/' in spec_json]  # others are in buckets
    if used_volumes:
        draft.set_placeholder("runtime.volumes", used_volumes, "the claims that hold your text and the checkpoints.")
    if draft.get("parallelism") is None:
        draft.set("parallelism.strategy", "auto")
    elif draft.get("memory.remat") is None:
        draft.set("memory.remat", "full")
    return _choose_slices(draft, catalog)


def _choose_slices(draft: DraftJob, catalog: Catalog) -> list[Problem]:
    """Set the smallest slice on which the job is valid; return the problems on the largest if there is none."""
    has_batch = draft.get("training.globalBatchSize") is not None
    problems: list[Problem] = []
    for topology in TOPOLOGIES:
        draft.set("slices", {"accelerator": ACCELERATOR, "topology": topology, "count": 1})
        num_devices = math.prod(int(dim) for dim in topology.split("x"))
        if not has_batch:
            _set_batch(draft, num_devices)
        manifest = as_manifest(draft)
        if topology != TOPOLOGIES[-1] and _exceeds_memory(manifest["spec"], num_devices, catalog):
            continue
        problems = list(validate_manifest(manifest, catalog).problems)
        if not problems:
            break
    draft.fill_in["slices"] = NO_SLICES if problems else SLICES
    return problems


def _exceeds_memory(spec: dict[str, Any], num_devices: int, catalog: Catalog) -> bool:
    """Return whether parameters and optimizer state exceed the memory. This check is faster than a plan."""
    parsed = parse_spec(spec).spec
    shape = find_slice_shape(parsed, catalog.hardware) if parsed else None
    if parsed is None or shape is None:
        return False
    return resolve(parsed.model).num_parameters * STATE_BYTES > shape.memory_bytes * num_devices


def _set_batch(draft: DraftJob, num_devices: int) -> None:
    """Set the global batch size: the batch of a device times the devices of these slices."""
    per_device = draft.sequences_per_device
    draft.set("training.globalBatchSize", max(round((per_device or 1) * num_devices), 1))
    hint = "the number of sequences in an optimizer step, which does not depend on the number of devices."
    if per_device:
        hint += f" The source has {per_device:g} for each device, which is this number on {num_devices} devices."
    draft.fill_in["training.globalBatchSize"] = hint
