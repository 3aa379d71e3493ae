"""Validation of a TrainingJob, for webhook, condition and command line.

All applicable rules run, and all problems are reported at once.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainingjob_api.notation import slug
from trainingjob_api.parse.parse_messages import format_value
from trainingjob_api.parse.parser import MAX_PROBLEMS, Parsed, parse_spec
from trainingjob_api.problem import Problem, in_order
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.catalog import BUILTIN, Catalog
from trainingjob_operator.core.manifests import get_text
from trainingjob_operator.core.names import MAX_LABEL_LENGTH, longest_pod_name
from trainingjob_operator.core.planner.choice import Choice
from trainingjob_operator.core.planner.hardware import Hardware
from trainingjob_operator.core.planner.oom_fixes import suggest_oom_fixes
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import (
    LazySizeOutcomes,
    SizeOutcomes,
    assemble_plan,
    find_slice_shape,
    plan_program_sizes,
    plan_sizes,
)
from trainingjob_operator.core.planner.strategy import MeshSearch, is_auto, list_searches, resolve_strategy
from trainingjob_operator.core.units import pluralize
from trainingjob_operator.core.validation import (
    validate_backup,
    validate_conversations,
    validate_data,
    validate_distillation,
    validate_env,
    validate_evaluation,
    validate_experts,
    validate_fill_in_the_middle,
    validate_grace_period,
    validate_intervals,
    validate_layers,
    validate_lora,
    validate_memory,
    validate_mesh,
    validate_metadata,
    validate_metrics,
    validate_mixture,
    validate_model,
    validate_phases,
    validate_pods,
    validate_precision,
    validate_prediction,
    validate_preferences,
    validate_profile,
    validate_profiling,
    validate_program,
    validate_protection,
    validate_quantization,
    validate_replicas,
    validate_retention,
    validate_runtime,
    validate_samples,
    validate_schedule,
    validate_sharding_rules,
    validate_sizes,
    validate_snapshots,
    validate_sources,
    validate_storage,
    validate_trainable,
    validate_training,
    validate_unsharded,
    validate_weights,
)
from trainingjob_operator.core.validation.quantity import parse_bytes
from trainingjob_operator.core.validation.rule import apply_rules
from trainingjob_operator.core.validation.suggestions import Document, SuggestionFilter

RULES = (
    *validate_mesh.RULES,
    *validate_sharding_rules.RULES,
    *validate_replicas.RULES,
    *validate_model.RULES,
    *validate_layers.RULES,
    *validate_prediction.RULES,
    *validate_schedule.RULES,
    *validate_training.RULES,
    *validate_memory.RULES,
    *validate_mixture.RULES,
    *validate_phases.RULES,
    *validate_precision.RULES,
    *validate_quantization.RULES,
    *validate_experts.RULES,
    *validate_trainable.RULES,
    *validate_lora.RULES,
    *validate_data.RULES,
    *validate_sources.RULES,
    *validate_fill_in_the_middle.RULES,
    *validate_conversations.RULES,
    *validate_preferences.RULES,
    *validate_distillation.RULES,
    *validate_samples.RULES,
    *validate_storage.RULES,
    *validate_retention.RULES,
    *validate_backup.RULES,
    *validate_weights.RULES,
    *validate_runtime.RULES,
    *validate_env.RULES,
    *validate_pods.RULES,
    *validate_profile.RULES,
    *validate_grace_period.RULES,
    *validate_protection.RULES,
    *validate_metrics.RULES,
    *validate_profiling.RULES,
    *validate_program.RULES,
)
SIZES_RULES = (
    *validate_sizes.RULES,
    *validate_snapshots.RULES,
    *validate_memory.SIZES_RULES,
    *validate_samples.SIZES_RULES,
    *validate_evaluation.SIZES_RULES,
)
PLAN_WARNINGS = (
    *validate_sizes.WARNINGS,
    *validate_unsharded.PLAN_WARNINGS,
    *validate_snapshots.WARNINGS,
    *validate_replicas.PLAN_WARNINGS,
    *validate_grace_period.PLAN_WARNINGS,
)
WARNINGS = (
    *validate_mesh.WARNINGS,
    *validate_sharding_rules.WARNINGS,
    *validate_model.WARNINGS,
    *validate_layers.WARNINGS,
    *validate_schedule.WARNINGS,
    *validate_training.WARNINGS,
    *validate_precision.WARNINGS,
    *validate_quantization.WARNINGS,
    *validate_experts.WARNINGS,
    *validate_trainable.WARNINGS,
    *validate_data.WARNINGS,
    *validate_mixture.WARNINGS,
    *validate_phases.WARNINGS,
    *validate_conversations.WARNINGS,
    *validate_distillation.WARNINGS,
    *validate_samples.WARNINGS,
    *validate_intervals.WARNINGS,
    *validate_storage.WARNINGS,
    *validate_retention.WARNINGS,
    *validate_backup.WARNINGS,
    *validate_runtime.WARNINGS,
    *validate_env.WARNINGS,
    *validate_grace_period.WARNINGS,
    *validate_protection.WARNINGS,
    *validate_metrics.WARNINGS,
    *validate_profiling.WARNINGS,
)
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


@dataclass(frozen=True)
class ValidationResult:
    """The result of a validation. There is a plan if and only if there are no problems."""

    spec: TrainingJobSpec | None
    """None: the spec is unusable."""
    plan: Plan | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


class _Cost:
    """Number of sizes planned for a document and its changes. It does not depend on what earlier documents cached."""

    def __init__(self) -> None:
        self._searches: dict[MeshSearch, int] = {}
        self._num_sizes = 0

    @property
    def num_plans(self) -> int:
        return sum(self._searches.values()) + self._num_sizes

    def add(self, parsed: Parsed, sizes: SizeOutcomes, hardware: Hardware) -> None:
        """Count the plans of one validation. Equal searches for a mesh count once, because their result is cached."""
        if not isinstance(sizes, LazySizeOutcomes) or parsed.spec is None:
            return
        self._num_sizes += sizes.num_planned
        shape = find_slice_shape(parsed.spec, hardware)
        if shape and is_auto(parsed.spec):
            searches = list_searches(parsed.spec, shape, _find_pod_memory(parsed))
            self._searches |= {search: search.run().num_plans for search in searches}


def validate_job(name: str, raw_spec: object, catalog: Catalog = BUILTIN, namespace: str = "") -> ValidationResult:
    """Return the plan of a job or all its problems, and warnings about valid but wasteful settings.

    Without a namespace, the job may use the pod profiles of all.
    """
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return validate_manifest({"metadata": metadata, "spec": raw_spec}, catalog)


def validate_manifest(manifest: Document, catalog: Catalog = BUILTIN) -> ValidationResult:
    """Validate a whole object like `validate_job`, including the fields beside its spec."""
    hardware = _find_hardware(manifest, catalog)
    unresolved = parse_spec(manifest.get("spec"), catalog.presets)
    parsed, choice = _resolve_strategy(unresolved, hardware)
    sizes = _plan_sizes(parsed, hardware)
    problems = _find_problems(manifest, parsed, sizes, hardware)
    plan = None
    if parsed.spec and not problems:
        shape = find_slice_shape(parsed.spec, hardware)
        assert shape, "a rule refuses every slice that the hardware table does not have"  # noqa: S101
        plan = assemble_plan(parsed.spec, shape, sizes, choice)
    warnings = in_order(
        [
            *validate_metadata.warn_of_foreign_labels(manifest),
            *apply_rules(WARNINGS, parsed, hardware),
            *(_warn_of_plan(plan, parsed, sizes) if plan else ()),
        ]
    )
    cost = _Cost()
    cost.add(unresolved, sizes, hardware)
    problems, warnings = _keep_legal_suggestions(manifest, problems, warnings, catalog, cost)
    return ValidationResult(parsed.spec, plan, tuple(problems), tuple(warnings))


def _find_hardware(manifest: Document, catalog: Catalog) -> Hardware:
    """Return the hardware table for the namespace of a job."""
    return catalog.hardware.in_namespace(get_text(manifest, "metadata", "namespace"))


def _find_problems(manifest: Document, parsed: Parsed, sizes: SizeOutcomes, hardware: Hardware) -> list[Problem]:
    name = get_text(manifest, "metadata", "name")
    return in_order(
        [
            *parsed.problems,
            *validate_metadata.check_fields(manifest),
            *validate_metadata.check_metadata(manifest),
            *(check_name(name, parsed, hardware) if name else validate_metadata.check_missing_name(manifest)),
            *apply_rules(RULES, parsed, hardware),
            *_check_sizes(parsed, sizes, hardware),
        ]
    )


def _keep_legal_suggestions(
    manifest: Document, problems: list[Problem], warnings: list[Problem], catalog: Catalog, cost: _Cost
) -> tuple[list[Problem], list[Problem]]:
    """Return problems and warnings with only those suggestions that pass the whole validation."""

    def find_document_problems(changed: Document) -> list[Problem]:
        hardware, unresolved = _find_hardware(changed, catalog), parse_spec(changed.get("spec"), catalog.presets)
        parsed, _ = _resolve_strategy(unresolved, hardware)
        sizes = _plan_sizes(parsed, hardware, with_oom_fixes=False)
        found = _find_problems(changed, parsed, sizes, hardware)
        cost.add(unresolved, sizes, hardware)
        return found

    if len(problems) >= MAX_PROBLEMS:  # so many problems are not a typo, and each validation would take long
        return [replace(problem, nearest=()) for problem in problems], warnings
    search = SuggestionFilter(manifest, problems, find_document_problems, lambda: cost.num_plans)
    return search.keep_legal_suggestions(problems), search.keep_legal_suggestions(warnings)


def check_name(name: str, parsed: Parsed, hardware: Hardware) -> Iterator[Problem]:
    """Check that the job's name can begin its pods' names, which are labels and host names at once."""
    path = "metadata.name"
    if not _NAME.fullmatch(name):
        message = (
            f"{format_value(name)} must have only lower-case letters, digits and `-`, begin with a letter, and not end "
            "with `-`."
        )
        corrected = slug(name[:MAX_LABEL_LENGTH])
        corrected = f"job-{corrected}" if corrected[:1].isdigit() else corrected
        yield Problem(path, name, message, (corrected,) if corrected else ())
    shape = find_slice_shape(parsed.spec, hardware) if parsed.spec and parsed.is_as_written(("slices",)) else None
    num_slices, num_hosts = (parsed.spec.slices.max_slices, shape.num_hosts) if parsed.spec and shape else (1, 1)
    pod = longest_pod_name(name, num_slices, num_hosts)
    excess = len(pod) - MAX_LABEL_LENGTH
    if excess > 0:
        message = (
            f"{format_value(name)} must have at most {pluralize(len(name) - excess, 'character')}, but has "
            f"{len(name)}. Its longest pod name would have {len(pod)} characters, but must have at "
            f"most {MAX_LABEL_LENGTH}."
        )
        yield Problem(path, name, message, (name[:-excess].rstrip("-"),) if _NAME.fullmatch(name) else ())


def _resolve_strategy(parsed: Parsed, hardware: Hardware) -> tuple[Parsed, Choice | None]:
    """Return the spec with an explicit mesh, if the planner chooses it and all its inputs are valid."""
    shape = find_slice_shape(parsed.spec, hardware) if parsed.spec else None
    if parsed.spec is None or shape is None or not parsed.is_as_written(validate_sizes.SIZE_FIELDS):
        return parsed, None
    spec, choice = resolve_strategy(parsed.spec, shape, _find_pod_memory(parsed))
    return replace(parsed, spec=spec), choice


def _plan_sizes(parsed: Parsed, hardware: Hardware, *, with_oom_fixes: bool = True) -> SizeOutcomes:
    """Return the outcome of each size; empty if the slices or other inputs of the plan are invalid."""
    shape = find_slice_shape(parsed.spec, hardware) if parsed.spec else None
    if parsed.spec and shape and parsed.spec.command_program:
        return plan_program_sizes(parsed.spec, shape) if parsed.is_as_written(("slices",)) else {}
    if parsed.spec is None or shape is None or not parsed.is_as_written(validate_sizes.SIZE_FIELDS):
        return {}
    sizes = plan_sizes(parsed.spec, shape)
    if not with_oom_fixes:
        return sizes
    return suggest_oom_fixes(sizes, parsed.spec, shape, hardware, _find_pod_memory(parsed))


def _find_pod_memory(parsed: Parsed) -> int | None:  # None: it cannot be read
    """Return the bytes of memory of a pod without its volumes."""
    is_valid = parsed.spec and parsed.is_as_written(("runtime.resources.memory",))
    return parse_bytes(parsed.spec.runtime.resources.memory) if parsed.spec and is_valid else None


def _check_sizes(parsed: Parsed, sizes: SizeOutcomes, hardware: Hardware) -> Iterator[Problem]:
    for rule in SIZES_RULES:
        if parsed.spec and parsed.is_as_written(rule.reads):
            yield from rule.check(parsed.spec, sizes, hardware)


def _warn_of_plan(plan: Plan, parsed: Parsed, sizes: SizeOutcomes) -> Iterator[Problem]:
    for warning in PLAN_WARNINGS:
        if parsed.is_as_written(warning.reads):
            yield from warning.check(plan, sizes)
