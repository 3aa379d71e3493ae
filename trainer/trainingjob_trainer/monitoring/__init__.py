"""Checks and reports of a running world: metrics, bad steps, replicas, evaluations, control signals."""
