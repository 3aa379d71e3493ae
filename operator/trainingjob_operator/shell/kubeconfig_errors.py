"""Readable error messages for an invalid kubeconfig. The client library raises internal errors, or only logs them."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import yaml


def describe_kubeconfig_error(error: Exception) -> str:
    """Return why a kubeconfig is invalid, on one line."""
    message = " ".join(str(error).split())
    match error:
        case yaml.YAMLError():
            return f"it is not valid YAML: {message}"
        case UnicodeDecodeError():
            return f"it is not UTF-8 text: {message}"
        case RecursionError():
            return "it is nested too deeply"
        case AttributeError() | LookupError() | TypeError():
            return f"it is not a valid kubeconfig ({type(error).__name__}: {message})"
        case _:
            return message


def exec_plugin_of(loader: Any) -> Mapping[str, Any] | None:  # None: the user has no plugin
    """Return the `exec` credential plugin of the kubeconfig's user, from the client's loader."""
    user = getattr(vars(loader).get("_user"), "value", None)
    plugin = user.get("exec") if isinstance(user, dict) else None
    return plugin if isinstance(plugin, dict) else None


def describe_plugin_failure(plugin: Mapping[str, Any], errors: list[str]) -> str:
    """Return a message about a failed credential plugin: the reason, and the kubeconfig's installation hint."""
    is_missing = any("No such file or directory" in error for error in errors)
    reason = (
        "is not installed, or not on PATH" if is_missing else f"returned none: {'; '.join(errors) or 'no error output'}"
    )
    hint = " ".join(str(plugin.get("installHint") or "").split())
    return (
        f"the kubeconfig takes credentials from the program `{plugin.get('command')}`, which {reason}. {hint}".rstrip()
    )


@contextlib.contextmanager
def capture_errors(name: str) -> Iterator[list[str]]:
    """Collect a logger's errors instead of printing them."""
    errors: list[str] = []

    class CaptureHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(" ".join(record.getMessage().split()))

    logger, handler = logging.getLogger(name), CaptureHandler(logging.ERROR)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield errors
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
