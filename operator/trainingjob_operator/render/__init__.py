"""Rendering of a plan to Kubernetes manifests: pure functions that return dicts in YAML order, without any I/O."""
