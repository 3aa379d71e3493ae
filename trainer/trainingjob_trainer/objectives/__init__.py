"""Objectives: what training minimizes, as sums over the predictions of a batch."""
