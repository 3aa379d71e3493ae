"""Observation: the state of a job at one moment, assembled from its Kubernetes objects, host reports and status.

This package converts manifests and reports to values and draws no conclusions; `diagnose` does that. It imports only
the planner.
"""
