"""Hugging Face models as data: rules that map the tensors of their files to ours, and `config.json` to `spec.model`.

The rules of a family are a table, which works in both directions. Planner, command line and trainer read it. It imports
no JAX.
"""
