"""Rules about the environment variables of XLA, libtpu and JAX. An invalid value terminates each process.

Flags are split like in XLA's `parse_flags_from_env.cc`: at white space outside of quotes. XLA_FLAGS may also name a
file of flags. A word with `$(NAME)` is not checked, because the kubelet replaces it by another variable's value.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches

from trainingjob_api.parse.parse_messages import format_value
from trainingjob_api.problem import Problem, as_text
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.runtime import EnvVar
from trainingjob_api.variables import WORLD_VARIABLES
from trainingjob_operator.core.validation.jax_options import (
    BOOL_FLAGS,
    BOOL_VARIABLES,
    CHOICE_VARIABLES,
    FLOAT_FLAGS,
    FLOAT_VARIABLES,
    INT_FLAGS,
    INT_VARIABLES,
    OTHER_VARIABLES,
    TEXT_FLAGS,
)
from trainingjob_operator.core.validation.rule import Rule

XLA_FLAGS, LIBTPU_FLAGS = "XLA_FLAGS", "LIBTPU_INIT_ARGS"
DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
QUOTE_REPLACEMENTS = str.maketrans(
    {**dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb", '"'), **dict.fromkeys("\u2018\u2019\u201a", "'")}
)
FLAGS = BOOL_FLAGS | INT_FLAGS | FLOAT_FLAGS | TEXT_FLAGS
VARIABLES = BOOL_VARIABLES | INT_VARIABLES | FLOAT_VARIABLES | OTHER_VARIABLES | CHOICE_VARIABLES.keys()
BOOL_SPELLINGS = {
    "true": ("y", "yes", "t", "true", "on", "1"),
    "false": ("n", "no", "f", "false", "off", "0"),
}
"""The truth values of JAX, case-insensitive (`jax._src.config.bool_env`)."""
_FLAG = re.compile(r"--([A-Za-z_][\w.]*)(?:=(.*))?", re.DOTALL | re.ASCII)
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|\S)+""")
_INT, _FLOAT = re.compile(r"[-+]?[0-9]+"), re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_TPU_ONLY = ("xla_tpu_", "xla_jf_", "xla_sc_", "megascale_", "tpu_")
"""Prefixes of flags that only libtpu has."""


def check_flags(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Each word of `XLA_FLAGS` and `LIBTPU_INIT_ARGS` must be a flag with a value of its type."""
    for variable_path, variable in _plain_variables(spec):
        if variable.name not in (XLA_FLAGS, LIBTPU_FLAGS) or _is_flag_file(variable):
            continue
        flags = split_flags(variable.value or "")
        corrected = [correct_flag(flag) for flag in flags]
        is_corrected = not any(_is_invalid(variable.name, flag) for flag in corrected)
        nearest = (as_text(" ".join(corrected)),) if is_corrected else ()
        for flag in flags:
            if _is_invalid(variable.name, flag):
                message = f"{format_value(flag)} {describe_flag_error(variable.name, flag)}."
                yield Problem(f"{variable_path}.value", variable.value, message, nearest)


def split_flags(value: str) -> list[str]:
    """Return the flags of a flags variable."""
    return _WORD.findall(value)


def describe_flag_error(variable: str, flag: str) -> str:
    """Return the correction that a flag of a variable needs; empty if it is valid."""
    if special := sorted(
        {character for character in flag if character in DASHES or ord(character) in QUOTE_REPLACEMENTS}
    ):
        return f"must use `-` and straight quotes, but contains {' and '.join(special)}"
    match = _FLAG.fullmatch(flag)
    if match is None:
        return "must begin with `--` and a flag name, such as `--xla_dump_to=/shared/dump`"
    name, value = match.groups()
    if variable != XLA_FLAGS or name not in FLAGS:
        return ""
    if value is None:
        return "" if name in BOOL_FLAGS else "must have a value. Write `=` and the value directly after the name"
    if name in BOOL_FLAGS and value.lower() not in ("true", "false", "1", "0"):
        return "must be `true` or `false`"
    if name in INT_FLAGS and not _INT.fullmatch(value):
        return "must be a whole number"
    return "must be a number" if name in FLOAT_FLAGS and not _FLOAT.fullmatch(value) else ""


def correct_flag(flag: str) -> str:
    """Return the flag that the user probably meant, or the text as it is if that is unclear."""
    if "$(" in flag:
        return flag
    text = flag.translate(QUOTE_REPLACEMENTS)
    if text[:1] in ("'", '"') and text[-1:] == text[:1] and " " not in text:
        text = text[1:-1]
    body = text.lstrip("-" + DASHES)
    name, equals, value = body.partition("=")
    value = value.translate(dict.fromkeys(map(ord, DASHES), "-"))
    if name in BOOL_FLAGS:
        value = next(
            (bool_text for bool_text, spellings in BOOL_SPELLINGS.items() if value.lower() in spellings), value
        )
    return f"--{name}{equals}{value}" if _FLAG.fullmatch(f"--{name}") else flag


def check_jax_variables(spec: TrainingJobSpec) -> Iterator[Problem]:
    """JAX's variables must have values that JAX can parse when it is imported."""
    for variable_path, variable in _plain_variables(spec):
        value, name = variable.value or "", variable.name
        if "$(" in value:
            continue
        value_text = format_value(value) if value else "the empty value"
        if name in BOOL_VARIABLES and value.lower() not in (*BOOL_SPELLINGS["true"], *BOOL_SPELLINGS["false"]):
            message = f"{value_text} must be `true` or `false`, because {name} is a boolean setting of JAX."
            yield Problem(f"{variable_path}.value", value, message, ('"true"', '"false"'))
        elif name in INT_VARIABLES and not _INT.fullmatch(value):
            nearest = (f'"{int(float(value))}"',) if _FLOAT.fullmatch(value) and float(value).is_integer() else ()
            message = f"{value_text} must be a whole number, because {name} is an integer setting of JAX."
            yield Problem(f"{variable_path}.value", value, message, nearest)
        elif name in FLOAT_VARIABLES and not _FLOAT.fullmatch(value):
            message = f"{value_text} must be a number, because {name} is a numeric setting of JAX."
            yield Problem(f"{variable_path}.value", value, message)
        elif name in CHOICE_VARIABLES and value not in CHOICE_VARIABLES[name]:
            choices = CHOICE_VARIABLES[name]
            by_lower_case = {choice.lower(): choice for choice in choices}
            near = get_close_matches(value.lower(), by_lower_case, n=1, cutoff=0.5)
            message = f"{value_text} must be one of {', '.join(choices)}."
            yield Problem(
                f"{variable_path}.value", value, message, tuple(as_text(by_lower_case[choice]) for choice in near)
            )


def warn_of_unknown_flags(spec: TrainingJobSpec) -> Iterator[Problem]:
    """XLA aborts a process with an unknown flag. The XLA of another image may have other flags."""
    for variable_path, variable in _plain_variables(spec):
        if variable.name != XLA_FLAGS or _is_flag_file(variable):
            continue
        flags = split_flags(variable.value or "")
        for flag in flags:
            match = _FLAG.fullmatch(flag)
            name = match[1] if match else ""
            if not name or name in FLAGS:
                continue
            message = f"--{name} should be an XLA flag. The jaxlib of this release does not know it and would abort."
            near = get_close_matches(name, FLAGS, n=1, cutoff=0.8)
            if name.startswith(_TPU_ONLY):
                message += f" Write libtpu flags to {LIBTPU_FLAGS}."
                near = []
            corrected = (
                " ".join(other.replace(f"--{name}", f"--{near_name}") for other in flags) for near_name in near
            )
            yield Problem(f"{variable_path}.value", variable.value, message, tuple(map(as_text, corrected)))


def warn_of_unknown_variables(spec: TrainingJobSpec) -> Iterator[Problem]:
    """JAX ignores an unknown variable."""
    for number, variable in enumerate(spec.runtime.env):
        name = variable.name
        if name.upper().startswith("JAX_") and name not in VARIABLES and not name.startswith(WORLD_VARIABLES):
            message = f"{name} should be a JAX variable. The JAX of this release does not read it."
            near = get_close_matches(name.upper(), VARIABLES, n=1, cutoff=0.8)
            yield Problem(f"spec.runtime.env[{number}].name", name, message, tuple(near))


def warn_of_repeated_flags(spec: TrainingJobSpec) -> Iterator[Problem]:
    """If a flag is set twice, its last value takes effect."""
    for variable_path, variable in _plain_variables(spec):
        if variable.name in (XLA_FLAGS, LIBTPU_FLAGS):
            names = [match[1] for flag in split_flags(variable.value or "") if (match := _FLAG.fullmatch(flag))]
            for name in dict.fromkeys(
                flag_name for number, flag_name in enumerate(names) if flag_name in names[:number]
            ):
                message = f"--{name} should be set only once. Its last value takes effect."
                yield Problem(f"{variable_path}.value", variable.value, message)


def _is_invalid(variable: str, flag: str) -> bool:
    return "$(" not in flag and describe_flag_error(variable, flag) != ""


def _plain_variables(spec: TrainingJobSpec) -> Iterator[tuple[str, EnvVar]]:
    """Yield the variables with literal values, and their paths."""
    for number, variable in enumerate(spec.runtime.env):
        if variable.value is not None:
            yield f"spec.runtime.env[{number}]", variable


def _is_flag_file(variable: EnvVar) -> bool:
    """Return whether a variable names a file of flags."""
    return variable.name == XLA_FLAGS and (variable.value or "").startswith("/")


RULES = (
    Rule(("runtime.env",), check_flags),
    Rule(("runtime.env",), check_jax_variables),
)
WARNINGS = (
    Rule(("runtime.env",), warn_of_unknown_flags),
    Rule(("runtime.env",), warn_of_unknown_variables),
    Rule(("runtime.env",), warn_of_repeated_flags),
)
