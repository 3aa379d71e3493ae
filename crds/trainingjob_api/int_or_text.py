"""Whole numbers that may also be a text, as Kubernetes writes an IntOrString."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from trainingjob_api.meta import Pattern


@dataclass(frozen=True)
class IntOrText(Pattern):
    """The form of a value: a whole number in bounds, or a text that matches the pattern."""

    minimum: int = 0
    maximum: int = 0

    def __iter__(self) -> Iterator[Any]:
        """Yield the schema that pydantic checks."""
        yield _Schema(self)


@dataclass(frozen=True)
class _Schema:
    form: IntOrText

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        number = core_schema.int_schema(ge=self.form.minimum, le=self.form.maximum)
        unchanged = core_schema.plain_serializer_function_ser_schema(lambda value: value)
        return core_schema.no_info_wrap_validator_function(self._check, number, serialization=unchanged)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        bounds = {"minimum": self.form.minimum, "maximum": self.form.maximum, "pattern": self.form.regex}
        return {"type": "integer", **bounds, "x-kubernetes-int-or-string": True}

    def _check(self, value: Any, check_number: core_schema.ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, str):
            return check_number(value)
        if not re.fullmatch(self.form.regex, value):
            raise PydanticKnownError("string_pattern_mismatch", {"pattern": self.form.regex})
        return value
