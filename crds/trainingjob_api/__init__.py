"""The TrainingJob API: models that the operator and the trainer share. Pure, without I/O."""
