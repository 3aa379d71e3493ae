"""Trackers: where the metrics of steps are written."""
