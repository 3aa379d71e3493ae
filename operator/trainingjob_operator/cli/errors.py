"""Errors that end a command, their exit codes, and install hints for optional libraries that are missing.

0 is success. 1 is a negative result: an invalid job, two plans that differ, a failed run. 2 is no result: the command
line is wrong, or a file, the job or the cluster cannot be read.
"""

EXIT_NEGATIVE = 1
EXIT_NO_RESULT = 2


class CommandError(Exception):
    """Ends the command with exit code 1. The text gives the user the cause and the remedy."""

    code = EXIT_NEGATIVE


class UsageError(CommandError):
    """The command cannot be carried out as written."""

    code = EXIT_NO_RESULT


class NoResultError(CommandError):
    """The state is unknown: the cluster or the compiler does not answer, or the cluster has no such job."""

    code = EXIT_NO_RESULT


EXTRAS = {
    "cli": ("aiohttp", "kubernetes"),
    "operator": ("cryptography", "kopf", "prometheus_client"),
    "trainer": ("etils", "flax", "jax", "jaxlib", "jinja2", "numpy", "optax", "orbax", "tensorboardX", "tokenizers"),
}
"""The package extra that installs each library. The package itself installs all other libraries."""


def describe_install_hint(error: Exception, extra: str = "") -> str:
    """Return an install hint if the error reports a missing library, else an empty string.

    `extra` is the package extra to recommend. Empty: the extra that contains the library.
    """
    library = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    default_extra = next((name for name, libraries in EXTRAS.items() if library in libraries), "")
    if not default_extra:
        return ""
    return (
        f"this command needs {library}, which is not installed here. Install it: "
        f"pip install 'trainingjob[{extra or default_extra}]'."
    )
