"""What to install for a command whose library is not there."""

EXTRAS = {
    "cli": ("aiohttp", "kubernetes"),
    "operator": ("cryptography", "kopf", "prometheus_client"),
    "trainer": ("etils", "flax", "jax", "jaxlib", "numpy", "optax", "orbax", "tensorboardX", "tokenizers"),
}
"""The extra of the package that brings each library; all others come with the package itself."""


def describe_missing(error: Exception, extra: str = "") -> str:
    """Return what to install, if an error says that a library is missing; else nothing.

    `extra` is the one that brings all libraries of a program. Empty: the one of the library.
    """
    library = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    found = next((name for name, libraries in EXTRAS.items() if library in libraries), "")
    if not found:
        return ""
    return (
        f"this command needs {library}, which is not installed here. Install it: "
        f"pip install 'trainingjob[{extra or found}]'."
    )
