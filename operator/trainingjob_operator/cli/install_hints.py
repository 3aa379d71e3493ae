"""Install hints for commands whose optional libraries are missing."""

EXTRAS = {
    "cli": ("aiohttp", "kubernetes"),
    "operator": ("cryptography", "kopf", "prometheus_client"),
    "trainer": ("etils", "flax", "jax", "jaxlib", "numpy", "optax", "orbax", "tensorboardX", "tokenizers"),
}
"""The package extra that installs each library. The package itself installs all other libraries."""


def describe_install_hint(error: Exception, extra: str = "") -> str:
    """Return an install hint if the error reports a missing library, else an empty string.

    `extra` is the package extra to recommend. Empty: the extra that contains the library.
    """
    library = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    found = next((name for name, libraries in EXTRAS.items() if library in libraries), "")
    if not found:
        return ""
    return (
        f"this command needs {library}, which is not installed here. Install it: "
        f"pip install 'trainingjob[{extra or found}]'."
    )
