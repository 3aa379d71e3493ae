"""Guards of the private APIs of JAX and Orbax, like those in tests/test_private_apis.py."""

import inspect

import jax
import orbax.checkpoint as ocp
from jax._src import distributed, xla_bridge
from jaxlib import _jax, xla_client
from orbax.checkpoint._src.futures.future import AwaitableSignalsContract
from orbax.checkpoint._src.serialization import tensorstore_utils


def test_jax_has_the_client_of_the_coordination_service() -> None:
    assert {"client", "service", "process_id", "num_processes"} <= set(vars(distributed.State))
    assert isinstance(distributed.global_state, distributed.State)
    calls = ("wait_at_barrier", "key_value_set", "blocking_key_value_get", "key_value_delete", "connect")
    assert [name for name in calls if not hasattr(_jax.DistributedRuntimeClient, name)] == []


def test_jax_knows_whether_a_process_has_devices() -> None:
    assert jax.devices()
    assert xla_bridge.backends_are_initialized() is True


def test_jaxlib_starts_a_coordination_service_and_cpu_clients() -> None:
    service, client = _jax.get_distributed_runtime_service.__doc__, _jax.get_distributed_runtime_client.__doc__
    cpu = inspect.signature(xla_client.make_cpu_client).parameters

    assert [name for name in ("heartbeat_timeout", "shutdown_timeout", "recoverable") if name not in service] == []
    assert [name for name in ("init_timeout", "use_compression", "heartbeat_timeout") if name not in client] == []
    assert {"distributed_client", "node_id", "num_nodes", "num_devices"} <= set(cpu)


def test_orbax_reads_the_signals_of_a_save_from_one_function() -> None:
    function = vars(AwaitableSignalsContract)["get_awaitable_signals_from_contract"]

    assert isinstance(function, (staticmethod, classmethod))
    assert "operation_id" in inspect.signature(function.__func__).parameters


def test_orbax_splits_writes_by_an_attribute_of_its_array_handler() -> None:
    handler = ocp.type_handlers.get_type_handler(jax.Array)

    assert hasattr(handler, "_min_slice_bytes_for_replica_parallel")


def test_orbax_names_the_file_of_a_step_as_the_product_does() -> None:
    from orbax.checkpoint._src.metadata import checkpoint  # noqa: PLC0415

    assert checkpoint._STEP_METADATA_FILENAME == "_CHECKPOINT_METADATA"


def test_orbax_builds_its_specs_with_functions_that_the_product_replaces() -> None:
    builders = inspect.getsource(tensorstore_utils._build_ocdbt_kvstore_tspec)

    assert "_normalize_path(directory)" in builders
    assert "_use_gcs_driver(directory)" in builders
    assert "gcs_utils.get_kvstore_for_gcs(directory)" in builders
