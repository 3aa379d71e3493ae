"""Validation of specs: problems and warnings, and the reference of the spec's fields."""
