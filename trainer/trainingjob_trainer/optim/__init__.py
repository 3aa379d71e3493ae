"""Optimizers, and the detection of loss spikes before an update."""
