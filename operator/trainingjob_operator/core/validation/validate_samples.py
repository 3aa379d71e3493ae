"""Rules about text samples: their steps, their positions and the memory of their cache."""

from collections.abc import Iterator

from trainingjob_api.decoding import count_prompt_bytes, find_decoding_shape, list_samples
from trainingjob_api.problem import Problem
from trainingjob_api.spec.evaluation import TextSample
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.evaluation_memory import count_averaged_bytes
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.memory import USABLE_MEMORY_SHARE, count_sample_bytes
from trainingjob_operator.core.planner.mesh import nearest_multiples
from trainingjob_operator.core.planner.plan import SizePlan
from trainingjob_operator.core.planner.planning import SizeOutcomes, find_slice_shape
from trainingjob_operator.core.planner.problem_messages import quote_field
from trainingjob_operator.core.units import format_size, pluralize
from trainingjob_operator.core.validation.rule import Rule, SizesRule
from trainingjob_operator.core.validation.validate_sizes import SIZE_FIELDS

CACHE_COPIES = 2
"""Caches that live at once: the loop over the layers reads one and writes the next."""
UNKNOWN_TOKENS = 1
"""Tokens of a prompt that only hosts can count: it has one or more."""


def check_sample_prompts(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A sample must have either `prompt`, or `messages` that do not end with one of the assistant."""
    for placed_sample in list_samples(spec):
        messages = placed_sample.sample.messages
        if placed_sample.sample.prompt is None and not messages:
            yield Problem(
                f"{placed_sample.path}.prompt", None, 'must be set. Write for example `prompt: "Once upon a time"`.'
            )
        elif placed_sample.sample.prompt is not None and messages:
            message = "must not be set with `messages`: a sample has one prompt. Remove one of the two."
            yield Problem(f"{placed_sample.path}.prompt", placed_sample.sample.prompt, message)
        if messages and messages[-1].role == "assistant":
            message = "must not be assistant in the last message: the model writes the answer. Remove the message."
            yield Problem(f"{placed_sample.path}.messages[{len(messages) - 1}].role", "assistant", message)


def check_sample_steps(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`samples[].everySteps` must be a multiple of the evaluation's `everySteps`."""
    for placed_sample in list_samples(spec):
        every, of_evaluation = placed_sample.sample.every_steps, placed_sample.evaluation.every_steps
        if every is not None and every % of_evaluation:
            field = f"{placed_sample.evaluation_path}.everySteps"
            message = f"{every} must be a multiple of {quote_field(field, of_evaluation)}."
            nearest = tuple(str(multiple) for multiple in nearest_multiples(of_evaluation, every))
            yield Problem(f"{placed_sample.path}.everySteps", every, message, nearest)


def check_sample_positions(spec: TrainingJobSpec) -> Iterator[Problem]:
    """With learned positions, a prompt and its text must not be longer than the table."""
    limit = spec.model.max_positions
    for path, sample, prompt in _list_prompts(spec):
        if limit and prompt + sample.max_tokens > limit:
            table = quote_field("spec.model.maxPositions", limit)
            message = f"{sample.max_tokens} and {_describe_prompt(prompt)} must be at most {table} together."
            nearest = (str(limit - prompt),) if limit > prompt else ()
            yield Problem(f"{path}.maxTokens", sample.max_tokens, message, nearest)


def warn_of_long_samples(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A model has not learned positions beyond `training.sequenceLength`."""
    length = spec.training.sequence_length
    for path, sample, prompt in _list_prompts(spec):
        if prompt + sample.max_tokens > length:
            limit = quote_field("spec.training.sequenceLength", length)
            message = (
                f"{sample.max_tokens} and {_describe_prompt(prompt)} exceed {limit} together. The model is not "
                "trained on such positions."
            )
            nearest = (str(length - prompt),) if length > prompt else ()
            yield Problem(f"{path}.maxTokens", sample.max_tokens, message, nearest)


def _list_prompts(spec: TrainingJobSpec) -> Iterator[tuple[str, TextSample, int]]:
    """Yield each sample with its path, and the tokens of its prompt: one, if only hosts can count them."""
    for placed_sample in list_samples(spec):
        prompt = placed_sample.sample.prompt if spec.tokenizer.type == "byte" else None
        yield placed_sample.path, placed_sample.sample, count_prompt_bytes(prompt) if prompt else UNKNOWN_TOKENS


def _describe_prompt(num_tokens: int) -> str:
    if num_tokens > UNKNOWN_TOKENS:
        return f"the {pluralize(num_tokens, 'token')} of the prompt"
    return "the prompt"


def check_sample_memory(spec: TrainingJobSpec, sizes: SizeOutcomes, hardware: Hardware) -> Iterator[Problem]:
    """The cache of the samples must fit beside parameters and optimizer state."""
    shape, decoding = find_slice_shape(spec, hardware), find_decoding_shape(spec)
    if shape is None or decoding is None or not shape.memory_bytes:
        return
    usable = int(shape.memory_bytes * USABLE_MEMORY_SHARE)
    planned = (size for size in sizes.values() if isinstance(size, SizePlan))
    for size in [
        size_plan for size_plan in planned if _cache_bytes(spec, size_plan) > _free_bytes(spec, size_plan, usable)
    ][:1]:
        path = f"{next(list_samples(spec)).evaluation_path}.samples"
        need, free = format_size(_cache_bytes(spec, size)), format_size(max(_free_bytes(spec, size, usable), 0))
        message = (
            f"{pluralize(decoding.rows, 'sample')} of up to {decoding.length:,} tokens need {need} per "
            f"{shape.device_noun} on {pluralize(size.num_slices, 'slice')}, and must fit in the {free} beside the "
            "state. Remove samples, or lower `maxTokens`."
        )
        yield Problem(path, decoding.rows, message)


def _cache_bytes(spec: TrainingJobSpec, size: SizePlan) -> int:
    return CACHE_COPIES * count_sample_bytes(spec, size)


def _free_bytes(spec: TrainingJobSpec, size: SizePlan, usable: int) -> int:
    """Return the bytes beside parameters, optimizer state, and the averaged parameters that the samples use."""
    return usable - (
        size.memory.params + size.memory.optimizer + count_averaged_bytes(spec, size.memory.gradients)
        if size.memory
        else 0
    )


RULES = (
    Rule(("evaluation",), check_sample_prompts),
    Rule(("evaluation",), check_sample_steps),
    Rule(("evaluation", "tokenizer", "model.maxPositions"), check_sample_positions),
)
WARNINGS = (Rule(("evaluation", "tokenizer", "training.sequenceLength"), warn_of_long_samples),)
SIZES_RULES = (SizesRule((*SIZE_FIELDS, "evaluation", "precision"), check_sample_memory),)
