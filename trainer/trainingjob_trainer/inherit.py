"""The parameters that a job begins with, where another job has trained them: found, proven whole, laid out anew.

The other job's folder is only read. It may be on a volume that cannot be written, and its owner may be training.
Everything but the parameters begins as in any job: the optimizer, the order of the data, the count of steps.
"""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from trainingjob_api.protocol import FailureReason
from trainingjob_api.running import InitializeFrom
from trainingjob_trainer.commit import name_processes
from trainingjob_trainer.failures import TrainingError
from trainingjob_trainer.model import Params
from trainingjob_trainer.restore_point import VERIFY_SECONDS, list_saved, verify
from trainingjob_trainer.world import Peers

LOG = logging.getLogger(__name__)
PATH = "spec.checkpoint.initializeFrom"
MOST_NAMED = 3


class Inherited(NamedTuple):
    """Parameters, and where they come from in words."""

    params: Params
    source: str


def inherit(source: InitializeFrom, params: Params, peers: Peers) -> Inherited:
    """Return the parameters that another job saved, laid out as `params` describes; all processes call it together.

    Without a step in the source the newest one counts that proves whole.

    Raises:
        TrainingError: there is none, or it holds the parameters of another model.
    """
    orbax = _open(peers)
    candidates = _list_candidates(source) if peers.process == 0 else []
    damages: list[str] = []
    while True:
        choice = _choose(source, candidates, damages) if peers.process == 0 else ""
        folder = Path(peers.exchange(f"inherit/{len(damages)}", choice, VERIFY_SECONDS)[0])
        told = peers.exchange(f"inherited/{len(damages)}", verify(folder, peers), VERIFY_SECONDS)
        damage = next(filter(None, told), "")
        if not damage:
            break
        LOG.warning("a saved step is passed over folder=%s damage=%s", folder, damage)
        damages.append(f"{folder}: {damage}")
        candidates = candidates[1:]
    if difference := _find_difference(params, orbax.metadata(folder).item_metadata.tree["params"]):
        raise TrainingError(
            FailureReason.CONFIG,
            f"step {folder.name} of {source.uri} holds the parameters of another model: {difference}. The section "
            "model must be that of the job that saved it.",
            path="spec.model",
        )
    wanted = {"params": params}
    how = ocp.checkpoint_utils.construct_restore_args(wanted)
    found = orbax.restore(folder, args=ocp.args.PyTreeRestore(item=wanted, restore_args=how, partial_restore=True))
    return Inherited(found["params"], f"step {int(folder.name):,} of {source.uri}")


def _open(peers: Peers) -> ocp.Checkpointer:
    processes = name_processes(peers, "inherit")
    return ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(multiprocessing_options=processes), multiprocessing_options=processes
    )


def _list_candidates(source: InitializeFrom) -> list[Path]:
    """Return the folders of the steps that may be meant, best first: of the newest lineage, then the newest step."""
    root = Path(source.uri)
    try:
        saved = [
            ((record.lineage, one.step), one.folder)
            for one in list_saved(root)
            if (record := one.integrity) and source.step in (None, one.step)
        ]
    except OSError as error:
        raise TrainingError(
            FailureReason.STORAGE, f"reading {root} failed: {error.strerror}.", path=f"{PATH}.uri", value=root
        ) from error
    return [folder for _, folder in sorted(saved, reverse=True)]


def _choose(source: InitializeFrom, candidates: list[Path], damages: list[str]) -> str:
    """Return the best folder that is left."""
    if candidates:
        return str(candidates[0])
    what = "no whole step" if source.step is None else f"no whole step {source.step}"
    words = f" ({'; '.join(damages[:MOST_NAMED])})" if damages else ""
    raise TrainingError(
        FailureReason.STORAGE,
        f"{source.uri} holds {what} of a TrainingJob{words}. Name the folder that was spec.checkpoint.uri of the job "
        "that saved it, on a volume that every host mounts.",
        path=f"{PATH}.uri" if source.step is None else f"{PATH}.step",
        value=source.uri if source.step is None else source.step,
    )


def _find_difference(wanted: Params, saved: Any) -> str:
    """Return in which arrays two trees of parameters differ, in words. Empty: in none."""
    ours, theirs = _shapes(wanted), _shapes(saved)
    names = [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
    words = [f"{name} is {_show(theirs.get(name))}, not {_show(ours.get(name))}" for name in names[:MOST_NAMED]]
    return "; ".join([*words, *([f"and {len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else [])])


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): tuple(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _show(shape: tuple[int, ...] | None) -> str:
    return "not there" if shape is None else "x".join(map(str, shape)) or "a number"
