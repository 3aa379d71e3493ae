"""Weights in the format of Hugging Face for the command line: reports about folders, and exports of checkpoints."""
