"""Diagnosis: which members are lost, hang or are stragglers; which nodes, saves and backups fail, and why.

A diagnosis names a cause and its location. `deciding` chooses the response. This package imports only `observing`.
"""
