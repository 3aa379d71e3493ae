"""The parameters of a teacher, which each start reads from their source. No checkpoint holds them.

The state has a hash of them. A start with other parameters fails: the loss would no longer be the one of the job.
"""

import logging

import jax
import numpy as np

from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.teacher import TEACHER, describe_source, describe_teacher, name_teacher_fields
from trainingjob_trainer.checkpoint.initialize import InitialParams, load_initial_params
from trainingjob_trainer.huggingface.published_params import PublishedParams, load_published_params
from trainingjob_trainer.models.base_params import Absent, BaseParams
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.params import DTYPES
from trainingjob_trainer.parallel.bit_sums import hash_arrays
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.state import State
from trainingjob_trainer.store.opening import open_store

LOG = logging.getLogger(__name__)
FIELD = f"{TEACHER}.initializeFrom"
STORED_FIELD = "spec.objective.distill.probabilities.uri"


def load_teacher(
    spec: TrainingJobSpec, shapes: Params | None, state: State, peers: ProcessGroup, stored_hash: int = 0
) -> tuple[State, Params | None]:
    """Return the state with the hash of the teacher's parameters, and these; all processes call this together.

    `shapes` are their shapes and shardings. Without them the job has no teacher, and the state is unchanged.
    `stored_hash` is that of stored probabilities. 0: the job reads none. They have no parameters.

    Raises:
        TrainingError: the source cannot be read, or holds other parameters than those that the state was trained with.
    """
    if stored_hash and state.teacher is not None and spec.objective and spec.objective.probabilities:
        number = np.array(stored_hash, np.uint32)
        found = jax.make_array_from_callback((), state.teacher.sharding, lambda _: number)
        return _check_hash(state, found, spec.objective.probabilities.uri, STORED_FIELD), {}
    loaded = read_teacher(spec, shapes, peers)
    if loaded is None:
        return state, None
    return _check_hash(state, hash_arrays(loaded.params), loaded.source, FIELD), loaded.params


def read_teacher(
    spec: TrainingJobSpec, shapes: Params | None, peers: ProcessGroup
) -> InitialParams | PublishedParams | None:  # None: the job has no teacher
    """Return the parameters of the teacher with the given shapes and shardings; all processes call this together.

    Raises:
        TrainingError: the source cannot be read.
    """
    teacher_spec, teacher = describe_teacher(spec), spec.objective.teacher if spec.objective else None
    if teacher_spec is None or teacher is None or shapes is None:
        return None
    base = BaseParams(
        resolve_network(teacher_spec), shapes, DTYPES[teacher_spec.precision.params], may_be_partial=False
    )
    source, random = describe_source(teacher), jax.tree.map(lambda _: Absent(), shapes)
    loaded: InitialParams | PublishedParams
    try:
        if source.hugging_face:
            own = open_store(spec.checkpoint.uri)
            loaded = load_published_params(source, teacher_spec.model, base, random, own, is_leader=False)
        else:
            loaded = load_initial_params(source, base, peers, random)
    except TrainingError as error:
        raise _name_fields(error) from error
    LOG.info("loaded the teacher source=%s", loaded.source)
    return loaded


def _check_hash(state: State, found: jax.Array, source: str, field: str) -> State:
    """Return the state with the hash of the teacher from a source; raise TrainingError if it has another."""
    assert state.teacher is not None  # noqa: S101  # the state of a job with a teacher has the item
    if int(state.teacher) not in (0, int(found)):
        raise TrainingError(
            FailureReason.CONFIG,
            f"the parameters of the teacher must be those of the first start, and {source} has others. Restore "
            "the files of the teacher, or create another job with a separate `checkpoint.uri`.",
            path=field,
        )
    return state._replace(teacher=found)


def _name_fields(error: TrainingError) -> TrainingError:
    """Return an error about the source of initial parameters as one about the teacher."""
    return TrainingError(
        error.reason,
        name_teacher_fields(str(error)),
        path=name_teacher_fields(error.path),
        value=error.value,
        fatal=error.fatal,
        is_host_known=error.is_host_known,
        newest_generation=error.newest_generation,
    )
