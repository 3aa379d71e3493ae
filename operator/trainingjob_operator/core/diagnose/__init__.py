"""Diagnosis: which members are lost, hang or are stragglers; which nodes, saves and backups fail, and why.

A diagnosis names a cause and its location. `decide` chooses the response. This package imports only `observe`.
"""
