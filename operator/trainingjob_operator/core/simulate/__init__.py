"""Simulation: runs the operator's own rules against a simulated cluster, years of a job in seconds."""
