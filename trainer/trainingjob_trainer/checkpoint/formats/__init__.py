"""Formats of saved arrays: how a state is written below the folder of a step, and read back."""
