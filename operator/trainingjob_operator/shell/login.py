"""Connections to the API server with the credentials of a pod or of a kubeconfig, which the client library finds."""

import functools
from typing import Any

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import ClusterUnavailableError
from trainingjob_operator.shell.kubeconfig_errors import (
    capture_errors,
    describe_kubeconfig_error,
    describe_plugin_failure,
    exec_plugin_of,
)

_CLIENT_LOG = "kubernetes.aio.config.kube_config"
"""Logger in which the client reports errors of a credential plugin. The client reports them nowhere else."""


async def connect() -> Api:
    """Connect with the pod's service account, else with the kubeconfig.

    Raises:
        ClusterUnavailableError: neither is present and valid.
    """
    configuration = Configuration()
    try:
        await read_service_account(configuration)
    except ClusterUnavailableError as missing:
        try:
            api, _ = await connect_as_user(None, None)
        except ClusterUnavailableError as error:
            raise ClusterUnavailableError(f"{missing}; {error}") from error
        return api
    return Api(configuration, refresh_credentials=read_service_account)


async def connect_as_user(kubeconfig: str | None, context: str | None) -> tuple[Api, str]:
    """Connect to the API server of a kubeconfig context. Return the client and the context's namespace.

    `kubeconfig` is a path, or several in the format of KUBECONFIG; None: the environment's. `context` is a context
    name; None: the current context.

    Raises:
        ClusterUnavailableError: the kubeconfig is invalid.
    """
    configuration = Configuration()
    current_context = (await _read_kubeconfig(configuration, kubeconfig, context)).current_context
    # The context is fixed: if the user switches the current context, its cluster is another one.
    refresh_credentials = functools.partial(_read_kubeconfig, kubeconfig=kubeconfig, context=current_context["name"])
    namespace = str(current_context["context"].get("namespace") or "default")
    return Api(configuration, refresh_credentials=refresh_credentials), namespace


async def read_service_account(configuration: Configuration) -> None:
    """Load the server address and the service account token of the pod.

    The client refreshes the token after a minute of wall time, which fails if the machine's clock is set back. A 401
    therefore calls this function again.

    Raises:
        ClusterUnavailableError: the process does not run in a pod with a service account.
    """
    try:
        load_incluster_config(configuration)
    except (ConfigException, OSError) as error:
        raise ClusterUnavailableError(f"no usable service account: {error}") from error


async def _read_kubeconfig(configuration: Configuration, kubeconfig: str | None, context: str | None) -> Any:
    """Load server address and credentials, which may run a credential plugin. Return the client's loader."""
    with capture_errors(_CLIENT_LOG) as errors:
        try:
            loader = await load_kube_config(
                kubeconfig, context, client_configuration=configuration, persist_config=False
            )
        except Exception as error:  # a malformed file makes the client raise arbitrary errors
            raise ClusterUnavailableError(f"no usable kubeconfig: {describe_kubeconfig_error(error)}") from error
    plugin = exec_plugin_of(loader)
    if plugin is not None and not configuration.api_key and configuration.cert_file is None:
        # The client would send requests without credentials, and the API server would reject them.
        raise ClusterUnavailableError(describe_plugin_failure(plugin, errors))
    return loader
