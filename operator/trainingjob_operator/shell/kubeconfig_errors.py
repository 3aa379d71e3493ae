"""What is wrong with a kubeconfig, in words: the client's own are those of its code, or of nobody."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import yaml


def describe_kubeconfig_error(error: Exception) -> str:
    """Return why a kubeconfig cannot be read, on one line."""
    words = " ".join(str(error).split())
    match error:
        case yaml.YAMLError():
            return f"it is no valid YAML: {words}"
        case UnicodeDecodeError():
            return f"it is not UTF-8 text: {words}"
        case RecursionError():
            return "it is nested too deeply"
        case AttributeError() | LookupError() | TypeError():
            return f"it has not the form of a kubeconfig ({type(error).__name__}: {words})"
        case _:
            return words


def exec_plugin_of(loader: Any) -> Mapping[str, Any] | None:  # None: the user has none
    """Return the entry of a kubeconfig's user that names a program for credentials, from the client's loader."""
    user = getattr(vars(loader).get("_user"), "value", None)
    plugin = user.get("exec") if isinstance(user, dict) else None
    return plugin if isinstance(plugin, dict) else None


def describe_plugin(plugin: Mapping[str, Any], errors: list[str]) -> str:
    """Return that a program gave no credentials, why, and what the kubeconfig says about its installation."""
    is_missing = any("No such file or directory" in error for error in errors)
    why = "is not installed, or not on PATH" if is_missing else f"gave none: {'; '.join(errors) or 'it said nothing'}"
    hint = " ".join(str(plugin.get("installHint") or "").split())
    return f"the kubeconfig takes credentials from the program `{plugin.get('command')}`, which {why}. {hint}".rstrip()


@contextlib.contextmanager
def keep_errors(name: str) -> Iterator[list[str]]:
    """Collect what is logged as an error while the context lasts, instead of printing it."""
    errors: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(" ".join(record.getMessage().split()))

    logger, handler = logging.getLogger(name), Keep(logging.ERROR)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield errors
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
