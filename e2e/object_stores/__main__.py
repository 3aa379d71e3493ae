"""Build the object stores that tests and benchmarks use."""

from e2e.object_stores.servers import SERVERS

if __name__ == "__main__":
    SERVERS.ensure(SERVERS.programs)
