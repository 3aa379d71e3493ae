"""Plan to manifests: pure functions that return dicts in the order of the YAML. Nothing here reads the cluster."""
