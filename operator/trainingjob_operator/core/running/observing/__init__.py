"""Observing: what is known of a job at one moment, laid together from its children, its hosts and its status.

Manifests and reports become values in the words of the rules here. Nothing is judged: whoever looks for what a fact
means goes to `judging`. Stands on the planner alone.
"""
