"""Errors of XLA, JAX, libtpu and NCCL about environment variables that they cannot use.

Flags are parsed when a process first needs a device, and JAX's variables when JAX is imported. Most of these errors end
the process at once, so that only the end of its log remains. The patterns match the pinned versions: jaxlib's
`parse_flags_from_env.cc` and `command_line_flags.cc`, JAX's `config.py`, `xla_client.py`, absl's flags in libtpu, and
NCCL's `enqueue.cc` and `socket.cc`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from trainingjob_api.protocol import MAX_MESSAGE
from trainingjob_api.spec.runtime import EnvVar

ENV_PATH = "spec.runtime.env"
XLA_FLAGS = "XLA_FLAGS"
LIBTPU_FLAGS = "LIBTPU_INIT_ARGS"
MAX_SHOWN = 256
"""Maximum characters of a detail from a log."""

_PATTERNS: tuple[tuple[str, str, str], ...] = (
    (r"Unknown flags? in (?P<variable>\w+): (?P<value>[^\n]+)", "", "XLA does not know {value}"),
    (
        r"Could not open file \"(?P<value>[^\n]*?)\" to read flags for environment variable \"(?P<variable>\w+)\"",
        "",
        "each flag must begin with two dashes, and {value} begins with none",
    ),
    (
        r"Couldn't interpret value (?P<value>[^\n]*) for flag (?P<flag>\w+)\.",
        XLA_FLAGS,
        "`{value}` must be a value that the flag --{flag} takes",
    ),
    (r"nknown command line flag '(?P<value>[^'\n]*)'", LIBTPU_FLAGS, "libtpu does not know the flag --{value}"),
    (
        r"llegal value '(?P<value>[^'\n]*)' specified for flag '(?P<flag>\w+)'",
        LIBTPU_FLAGS,
        "`{value}` must be a value that the flag --{flag} takes",
    ),
    (r"issing the value for the flag '(?P<value>\w+)'", LIBTPU_FLAGS, "the flag --{value} must have a value"),
    (
        r"invalid truth value (?P<value>'[^\n]*'|\"[^\n]*\") for environment '(?P<variable>\w+)'",
        "",
        "{value} must be `true` or `false`",
    ),
    (
        r"Invalid value \"(?P<value>[^\n]*)\" for JAX flag (?P<variable>\w+)",
        "",
        "`{value}` must be a value that JAX takes",
    ),
    (
        r"int_env\(['\"](?P<variable>JAX_\w+)['\"][^\0]*?invalid literal for int\(\) with base 10: (?P<value>'[^\n]*')",
        "",
        "{value} must be a whole number",
    ),
    (
        r"(?P<variable>XLA_PYTHON_CLIENT_ALLOCATOR) env var must be one of (?P<value>[^\n]+)",
        "",
        "it must be one of {value}",
    ),
    (
        r"XLA_CLIENT_MEM_FRACTION is specified together with (?P<variable>XLA_PYTHON_CLIENT_MEM_FRACTION)",
        "",
        "it must not be set together with XLA_CLIENT_MEM_FRACTION",
    ),
    (
        r"no algorithm/protocol available[^\n]* (?P<variable>NCCL_(?:ALGO|PROTO)) was set to (?P<value>[^\s.]+)",
        "",
        "NCCL has nothing that fits {value}",
    ),
    (
        r"(?P<variable>NCCL_SOCKET_IFNAME) set (?:by environment )?to (?P<value>\S+)[^\0]*?no socket interface found",
        "",
        "this host must have a network interface {value}",
    ),
)
"""Each row: a pattern, the variable if the text does not name it, and the problem."""
_COMPILED_PATTERNS = tuple((re.compile(pattern), variable, problem) for pattern, variable, problem in _PATTERNS)


@dataclass(frozen=True)
class FlagError:
    """An environment variable that cannot be used, and the reason."""

    variable: str
    message: str


def find_flag_error(text: str) -> FlagError | None:  # None: there is no such error
    """Return the first error about an environment variable in a log or an exception."""
    matches = ((match.start(), match, *row[1:]) for row in _COMPILED_PATTERNS if (match := row[0].search(text)))
    _, match, variable, description = min(matches, key=lambda row: row[0], default=(0, None, "", ""))
    if match is None:
        return None
    parts = {name: value.strip()[:MAX_SHOWN] for name, value in match.groupdict().items()}
    name = parts.get("variable", variable)
    name = name if name.isupper() else name.upper()  # JAX names its options in lower case
    message = f"the variable {name} cannot be used: {description.format(**parts)}. Correct it, or leave it out."
    return FlagError(name, message[:MAX_MESSAGE])


def locate_variable(env: Iterable[EnvVar], name: str) -> tuple[str, str]:
    """Return the path of a variable in the spec and its value as written; the path of the list if it is not there."""
    for number, variable in enumerate(env):
        if variable.name == name:
            sources = {"secretKeyRef": variable.secret_key_ref, "configMapKeyRef": variable.config_map_key_ref}
            field = next((field for field, source in sources.items() if source is not None), "value")
            return f"{ENV_PATH}[{number}].{field}", variable.value or ""
    return ENV_PATH, ""
