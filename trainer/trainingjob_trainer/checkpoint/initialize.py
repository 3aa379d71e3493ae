"""Initial parameters from another job's checkpoint: selected, verified and resharded for this job.

The other job's folder is only read: it may be on a read-only volume, and its owner may be training. Only the parameters
are taken. The optimizer, the data order and the step count start as in any new job.
"""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from trainingjob_api.network.adapter import INPUT_ENDING, OUTPUT_ENDING, SCALE_ENDING
from trainingjob_api.protocol import MAX_MESSAGE, FailureReason
from trainingjob_api.spec.checkpoint import InitializeFrom
from trainingjob_api.spec.lora import Lora
from trainingjob_trainer.checkpoint.formats.orbax_writer import make_restore_args, world_options
from trainingjob_trainer.checkpoint.frozen_tensors import find_array_folders
from trainingjob_trainer.checkpoint.manifest import Integrity, SavedLora, read_integrity
from trainingjob_trainer.checkpoint.owner import list_owners
from trainingjob_trainer.checkpoint.saved_steps import list_saved, rank_saved
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.checkpoint.verify import VERIFY_SECONDS, verify
from trainingjob_trainer.models.base_params import BaseParams
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.trainable import select, tensor_name
from trainingjob_trainer.runtime.errors import TrainingError, shorten
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.array_paths import array_path
from trainingjob_trainer.store.opening import open_store

LOG = logging.getLogger(__name__)
FIELD = "spec.checkpoint.initializeFrom"
MAX_NAMED_STEPS = 3
"""Maximum number of damaged steps that a message names. Of arrays, it names all that differ: a scanned model has few.
"""


type Shapes = dict[str, tuple[int, ...]]


class InitialParams(NamedTuple):
    """Parameters, and a text that names their source."""

    params: Params
    source: str


def load_initial_params(source: InitializeFrom, base: BaseParams, peers: ProcessGroup, random: Params) -> InitialParams:
    """Return the parameters that another job saved; all processes call this together.

    If the source names no step, the newest intact step is used. `random` holds the initial values of the parameters
    that the source lacks. It is consumed, because both may not fit in memory. Tensors that are quantized are restored
    one by one for the same reason.

    Raises:
        TrainingError: no intact step exists, or it holds the parameters of another model.
    """
    orbax, folder = _make_checkpointer(peers), find_intact_step(source, peers)
    saved = read_integrity(folder)
    folders = find_array_folders(folder, saved)
    saved_shapes: Shapes = {}
    for location in filter(None, (folders.step, folders.frozen)):
        saved_shapes |= _shapes(orbax.metadata(array_path(location)).item_metadata.tree["params"])
    problems, notes = [], []
    if any(map(_is_of_adapter, saved_shapes)):
        lora, scales = _check_lora(source, folder, base, saved_shapes), _list_scales(saved_shapes)
        problems = list(_list_lora_problems(saved.lora if saved else None, base, lora, has_scales=bool(scales)))
        notes = [] if saved and saved.lora else ["an older trainer did not record the alpha of its adapters"]
        base = base.with_adapters(has_scales=bool(scales) and base.stores_int8)
        if not base.stores_int8:  # a problem names them together
            saved_shapes = {name: shape for name, shape in saved_shapes.items() if name not in scales}
    params = base.abstract_params
    model_shapes = _shapes(params)
    _check_shapes(source, folder, model_shapes, saved_shapes, problems, may_be_partial=base.may_be_partial)
    names, tree = list(model_shapes), jax.tree.structure(params)
    own = dict(zip(names, jax.tree.leaves(base.select(random)), strict=True))
    common = [name for name in names if name in saved_shapes]
    for name in common:
        own[name].delete()
    unquantized = [name for name in common if not base.is_quantized(name)]
    for group in filter(None, (unquantized, *([name] for name in common if base.is_quantized(name)))):
        # Parameters of other groups are left out: Orbax would read a placeholder, with all its numbers.
        item = {"params": select(params, group.__contains__)}
        found = folders.read(item, partial(_restore, orbax))
        for path, leaf in jax.tree_util.tree_leaves_with_path(found["params"]):
            own[tensor_name(path)] = base.store(tensor_name(path), leaf)
    whole = base.complete(jax.tree.unflatten(tree, [own[name] for name in names]), random)
    return InitialParams(whole, _describe_source(source, folder, model_shapes, saved_shapes, notes))


def _restore(orbax: ocp.Checkpointer, folder: str, item: dict[str, Any]) -> dict[str, Any]:
    restore_args = jax.tree.map(make_restore_args, item)
    found: dict[str, Any] = orbax.restore(
        array_path(folder), args=ocp.args.PyTreeRestore(item=item, restore_args=restore_args, partial_restore=True)
    )
    return found


def find_intact_step(source: InitializeFrom, peers: ProcessGroup) -> StepFolder:
    """Return the step that the source names, or its newest intact one; all processes call this together.

    Raises:
        TrainingError: no such step is intact.
    """
    candidates = _list_candidates(source) if peers.process == 0 else []
    damages: list[str] = []
    while True:
        choice = _best_candidate(source, candidates, damages) if peers.process == 0 else ""
        folder = StepFolder(
            open_store(_uri_of(source)), peers.exchange(f"inherit/{len(damages)}", choice, VERIFY_SECONDS)[0]
        )
        found = verify(folder, peers)
        problems = peers.exchange(f"inherited/{len(damages)}", found.damage or found.unreadable, VERIFY_SECONDS)
        damage = next(filter(None, problems), "")
        if not damage:
            return folder
        LOG.warning("skipped a damaged step folder=%s damage=%s", folder.location, damage)
        damages.append(f"{folder.location}: {damage}")
        candidates = candidates[1:]


def _uri_of(source: InitializeFrom) -> str:
    assert source.uri is not None  # noqa: S101  # validation requires it without `huggingFace`
    return source.uri


def _make_checkpointer(peers: ProcessGroup) -> ocp.Checkpointer:
    processes = world_options(peers, "inherit")
    return ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(multiprocessing_options=processes), multiprocessing_options=processes
    )


def _list_candidates(source: InitializeFrom) -> list[StepFolder]:
    """Return the candidate step folders, best first: of the newest job, the newest lineage, then the newest step."""

    def rank(record: Integrity) -> tuple[int, ...]:
        return record.lineage, record.step, record.generation

    try:
        store = open_store(_uri_of(source))
        ranked = rank_saved(list_saved(store), list_owners(store), rank)
    except OSError as error:
        raise TrainingError(
            FailureReason.STORAGE,
            f"reading {source.uri} failed: {error.strerror}.",
            path=f"{FIELD}.uri",
            value=source.uri,
        ) from error
    return [saved_step.folder for saved_step in ranked if source.step in (None, saved_step.step)]


def _best_candidate(source: InitializeFrom, candidates: list[StepFolder], damages: list[str]) -> str:
    """Return the best remaining folder; raise TrainingError if none remains."""
    if candidates:
        return candidates[0].name
    what = "no intact step" if source.step is None else f"no intact step {source.step}"
    text = f" ({'; '.join(damages[:MAX_NAMED_STEPS])})" if damages else ""
    raise TrainingError(
        FailureReason.STORAGE,
        f"{source.uri} holds {what} of a TrainingJob{text}. Name the folder that was spec.checkpoint.uri of the job "
        "that saved it, on a volume that every host mounts.",
        path=f"{FIELD}.uri" if source.step is None else f"{FIELD}.step",
        value=source.uri if source.step is None else source.step,
    )


def _is_of_adapter(name: str) -> bool:
    return name.endswith((INPUT_ENDING, OUTPUT_ENDING))


def _list_scales(saved_shapes: Shapes) -> set[str]:
    """Return the scales of the int8 matrices in a checkpoint of LoRA."""
    return {
        name for name in saved_shapes if name.endswith(SCALE_ENDING) and name.removesuffix(SCALE_ENDING) in saved_shapes
    }


def _check_lora(source: InitializeFrom, folder: StepFolder, base: BaseParams, saved_shapes: Shapes) -> Lora:
    """Return the adapters of the job that starts from a checkpoint of LoRA.

    Raises:
        TrainingError: the job has none, or names other adapters. The matrices alone are not the trained model.
    """
    if base.lora and source.adapter is None:
        return base.lora
    adapters = [name for name in saved_shapes if _is_of_adapter(name)]
    raise TrainingError(
        FailureReason.CONFIG,
        f"step {folder.step} of {source.uri} must be of a job without spec.lora, and holds {len(adapters)} "
        f"matrices of adapters, such as {adapters[0]}. "
        + (f"Remove {FIELD}.adapter to continue with them. Or write" if base.lora else "Write")
        + " the merged model with `trainingjob export`, and name "
        f"its folder in {FIELD}.huggingFace.path.",
        path=f"{FIELD}.uri",
        value=str(source.uri),
    )


def _list_lora_problems(found: SavedLora | None, base: BaseParams, lora: Lora, *, has_scales: bool) -> Iterator[str]:
    """Yield in which options of LoRA a checkpoint differs from a job, beside the shapes of its adapters."""
    for name in ("rank", "alpha"):
        if found and getattr(found, name) != getattr(lora, name):
            yield f"{name} is {getattr(found, name):g}, but `spec.lora.{name}` is {getattr(lora, name):g}"
    if has_scales and not base.stores_int8:
        yield "its matrices are int8, but `spec.lora.baseQuantization` is not set"


def _check_shapes(
    source: InitializeFrom,
    folder: StepFolder,
    model_shapes: Shapes,
    saved_shapes: Shapes,
    problems: Sequence[str],
    *,
    may_be_partial: bool,
) -> None:
    """Raise TrainingError where a checkpoint lacks the parameters of this model, and name all that differ.

    `problems` are those that shapes do not show. Adapters of the checkpoint must not be left out.
    """
    names = sorted(model_shapes.keys() | saved_shapes.keys())
    differing = [name for name in names if model_shapes.get(name) != saved_shapes.get(name)]
    both = [name for name in differing if name in model_shapes and name in saved_shapes]
    unused = [name for name in differing if name not in model_shapes and _is_of_adapter(name)]
    if source.allow_partial:
        differing = [*both, *unused]
    if not differing and not problems:
        return
    differences = "; ".join(
        (
            *problems,
            *(
                f"{name} is {_format_shape(saved_shapes.get(name))}, not {_format_shape(model_shapes.get(name))}"
                for name in differing
            ),
        )
    )
    is_partial_option = may_be_partial and not (both or unused or problems) and not source.allow_partial
    is_of_lora = bool(problems) or any(map(_is_of_adapter, differing))
    section = "sections model and lora" if is_of_lora else "section model"
    raise TrainingError(
        FailureReason.CONFIG,
        f"step {folder.step} of {source.uri} holds the parameters of another model: {differences}. "
        + (
            f"Set {FIELD}.allowPartial to true to load the arrays that both models have: the others start random. "
            f"Or set the {section} to that of the job that saved the step."
            if is_partial_option
            else f"The {section} must be that of the job that saved the step."
        ),
        path=f"{FIELD}.allowPartial" if is_partial_option else ("spec.lora" if is_of_lora else "spec.model"),
        value=str(source.allow_partial).lower() if is_partial_option else "",
    )


def _describe_source(
    source: InitializeFrom, folder: StepFolder, model_shapes: Shapes, saved_shapes: Shapes, notes: Sequence[str]
) -> str:
    """Return a text that names the source of the parameters and those that it lacks, and log it."""
    description = f"step {folder.step:,} of {source.uri}"
    missing = sorted(model_shapes.keys() - saved_shapes.keys())
    unused = sorted(saved_shapes.keys() - model_shapes.keys())
    if missing:
        description += f"; missing there, so they start random: {', '.join(missing)}"
    if unused:
        description += f"; not used: {', '.join(unused)}"
    description = "; ".join((description, *notes))
    LOG.info("initialized parameters source=%s", description)
    return shorten(description, MAX_MESSAGE)


def _shapes(tree: Any) -> Shapes:
    """Return the shapes of a tree's arrays by name, in the order of its leaves."""
    return {tensor_name(path): tuple(leaf.shape) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _format_shape(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else "x".join(map(str, shape)) or "a number"
