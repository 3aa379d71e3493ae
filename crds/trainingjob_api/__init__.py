"""What a TrainingJob is: the models that the operator and the trainer share. Pure."""
