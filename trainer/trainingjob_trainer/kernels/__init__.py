"""Kernels: one function for each operation, which several backends compute with the same numbers."""
