"""The network as data: its groups of layers, its parameter tensors, and the costs of each kind of block.

Planner and trainer read this description. It imports no JAX.
"""
