"""Reporting: the status that follows from a decision, the answers to hosts, and the events.

The status is also the operator's persistent memory, so this package limits its size. No decision depends on
it.
"""
