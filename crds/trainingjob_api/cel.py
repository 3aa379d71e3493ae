"""CEL rules that the API server checks: the form of unions, and immutable fields.

The API server reports them before it calls the webhook, and a violation skips the webhook. So these rules cover only
which fields are set. Rules that compare values are in the webhook, which can name them and the nearest legal values.

Both kinds are declared by the models: `cel_rules` of an object, and `Live` or `Immutable` of a field.
"""

from collections.abc import Iterable, Iterator

from trainingjob_api.base import Strict
from trainingjob_api.fields import ITEM, fields_of
from trainingjob_api.meta import CelRule, Immutable, Live, cel_rule
from trainingjob_api.spec.job import TrainingJobSpec

type Path = tuple[str, ...]
type Rules = dict[Path, tuple[CelRule, ...]]

MAX_NAME = 38
"""The longest pod name adds 25 characters, more if slice or host indices have two digits, as the webhook checks."""

ROOT_RULES: tuple[CelRule, ...] = (
    cel_rule(
        f"size(self.metadata.name) <= {MAX_NAME}",
        f"metadata.name must have at most {MAX_NAME} characters: it begins the names of pods.",
    ),
    # The API server already allows only these characters, besides a digit first and dots. A pattern match would cost a
    # fifth of the budget of one rule.
    cel_rule(
        "self.metadata.name >= 'a' && !self.metadata.name.contains('.')",
        "metadata.name must be lower-case letters, digits and `-`, with a letter first and no `-` last.",
    ),
)
IMMUTABLE = "self == oldSelf"
"""The rule of an immutable field."""
_SAME_ITEMS = "self.map(item, item.name) == oldSelf.map(item, item.name)"
"""The rule of an immutable list whose named items have live fields."""


def _rules_below(
    parent: Path, model: type[Strict], inherited: Live | Immutable | None
) -> Iterator[tuple[Path, CelRule]]:
    """Yield path and rule of all fields below an object. `inherited` is None where an outer rule compares them all."""
    for field in fields_of(model):
        path = (*parent, field.name)
        inner = (*path, ITEM) if field.is_list else path
        mutability = field.mutability or inherited
        yield from ((inner, rule) for rule in (field.model.cel_rules if field.model else ()))
        if isinstance(mutability, Immutable):
            if not field.has_live_parts:
                yield path, cel_rule(IMMUTABLE, mutability.message)
                if field.may_be_absent:  # a transition rule needs a value before and after
                    same = f"has(self.{field.name}) == has(oldSelf.{field.name})"
                    yield parent, cel_rule(same, mutability.message, field.name)
                mutability = None
            elif field.is_list:
                yield path, cel_rule(_SAME_ITEMS, mutability.message)
        if field.model:
            yield from _rules_below(inner, field.model, mutability)


def _group(rules: Iterable[tuple[Path, CelRule]]) -> Rules:
    grouped: Rules = {}
    for path, rule in rules:
        grouped[path] = (*grouped.get(path, ()), rule)
    return grouped


SPEC_RULES: Rules = _group(
    [*(((), rule) for rule in TrainingJobSpec.cel_rules), *_rules_below((), TrainingJobSpec, None)]
)
"""Rules of each object of the spec. Fields without an immutability rule may change while the job trains."""
