"""The network of a saved step: that of its model section, with the adapters that the step has."""

from trainingjob_api.network.adapt import adapt, list_targets
from trainingjob_api.network.adapter import INPUT_ENDING, SCALE_ENDING
from trainingjob_api.network.network import Network
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.lora import Lora
from trainingjob_api.spec.model import Model
from trainingjob_trainer.checkpoint.formats.saved_arrays import SavedParams
from trainingjob_trainer.checkpoint.manifest import SavedLora
from trainingjob_trainer.huggingface.safetensors import WeightsError


def find_saved_network(
    saved: SavedParams, model: Model, recorded: SavedLora | None, step: str
) -> tuple[Network, Lora | None]:
    """Return the network whose parameters a step has, and its adapters; None: it has none.

    `recorded` is what the step's manifest says about adapters, and `step` names the step in messages.

    Raises:
        WeightsError: the step has adapters of which the manifest does not have the scale.
    """
    network = resolve(model)
    matrices = [tensor.name for tensor in list_targets(network)]
    targets = tuple(name for name in matrices if saved.shape(f"{name}{INPUT_ENDING}") is not None)
    if not targets:
        return network, None
    if recorded is None:
        raise WeightsError(
            f"{step} has adapters without their scale, because an older trainer saved it. Export it with `trainingjob "
            "export` and the manifest of its job, and name the exported folder"
        )
    has_scales = any(saved.shape(f"{name}{SCALE_ENDING}") is not None for name in matrices)
    lora = Lora.model_construct(  # more names than a spec may have patterns
        rank=recorded.rank, alpha=recorded.alpha, targets=targets, base_quantization="int8" if has_scales else None
    )
    return adapt(network, lora), lora
