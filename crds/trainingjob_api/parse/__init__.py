"""Parsing of a spec: the typed spec, or every problem with its correction."""
