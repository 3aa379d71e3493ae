"""The operator: validates, plans, spawns and keeps TrainingJobs training. See docs/architecture.md for the layers."""
