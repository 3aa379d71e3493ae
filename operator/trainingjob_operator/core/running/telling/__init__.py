"""Telling: the status that follows from a decision, and what hosts and people hear of it.

The status is also what the operator remembers: how much of a world or of an attempt is kept is settled here. No rule
about a job stands on this room; it stands on all the others.
"""
