"""Objectives: sums of losses and gradients over the sequences of a batch."""
