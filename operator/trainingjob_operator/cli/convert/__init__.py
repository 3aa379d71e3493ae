"""`trainingjob convert`: a TrainingJob from the config of another program, by tables of its keys."""
