"""The operator's I/O layer: reads the cluster, calls the pure core, and executes the core's decisions."""
