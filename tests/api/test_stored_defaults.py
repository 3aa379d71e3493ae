"""The API server writes no default that the release before does not know: its webhook would reject the job."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainingjob_api.schema import make_crd

GOLDEN = Path(__file__).parents[1] / "golden/api/v1alpha1.stored_defaults"


def stored_defaults(node: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the paths of all defaults that the API server writes below an object that users write."""
    for name, child in node.get("properties", {}).items():
        here = f"{path}.{name}"
        if "default" in child:
            yield here
        yield from stored_defaults(child, here)
        yield from stored_defaults(child.get("items", {}), f"{here}[]")
        yield from stored_defaults(child.get("additionalProperties", {}), f"{here}[]")


def test_defaults_of_new_fields_are_not_stored(golden: Callable[[Path, str], None]) -> None:
    """A new field of an object that older versions know needs `NoStoredDefaults`.

    A default below a new object without a default may be added to the list (`GOLDEN=write`): a user of that object
    needs the new version anyway.
    """
    (version,) = make_crd()["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    golden(GOLDEN, "\n".join(sorted(stored_defaults(spec, "spec"))) + "\n")
