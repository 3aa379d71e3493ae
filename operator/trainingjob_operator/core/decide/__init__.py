"""Decisions: the next step of a job and its world, and the maintenance of its child objects.

`decision_rules` is the ordered list of rules. Each other module holds one concern: job failure, back-off, rollback,
repair waits, world formation, drills. This package imports only `diagnose` and the packages below it.
"""
