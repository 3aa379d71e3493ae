"""The status of a TrainingJob, a module for each concept."""
