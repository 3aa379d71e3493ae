"""The state before the first step: random parameters, or those of `checkpoint.initializeFrom`."""

from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.protocol import MAX_MESSAGE
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.checkpoint.initialize import InitialParams, load_initial_params
from trainingjob_trainer.huggingface.adapter_files import load_adapters
from trainingjob_trainer.huggingface.hub_download import ADAPTER, name_source
from trainingjob_trainer.huggingface.published_params import PublishedParams, load_published_params
from trainingjob_trainer.models.trainable import copy_params
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.errors import shorten
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.state import State
from trainingjob_trainer.step import StepPrograms
from trainingjob_trainer.store.opening import open_store


def make_initial_state(
    spec: TrainingJobSpec, steps: StepPrograms, programs: CompileCache, peers: ProcessGroup, events: AgentEvents
) -> State:
    """Return the state before the first step, and report the source of its parameters.

    Raises:
        TrainingError: the source of the parameters cannot be used.
    """
    state = steps.compile_init(programs)()
    source = spec.checkpoint.initialize_from
    if source is None:
        return state
    base = steps.make_base()
    initial: InitialParams | PublishedParams
    own = open_store(spec.checkpoint.uri)
    if source.hugging_face:
        initial = load_published_params(source, spec.model, base, state.params, own, is_leader=peers.process == 0)
    else:
        initial = load_initial_params(source, base, peers, state.params)
    params, adapter = load_adapters(spec, initial.params, steps.state_shapes.params), source.adapter
    description = f"{initial.source}; adapters of {name_source(ADAPTER, adapter, own)}" if adapter else initial.source
    events.send(AgentEvent(initialized_from=shorten(description, MAX_MESSAGE)))
    shapes = steps.state_shapes
    return state._replace(
        params=params,
        average=copy_params(shapes.average, params) if shapes.average else None,
        reference=copy_params(shapes.reference, params) if shapes.reference else None,
    )
