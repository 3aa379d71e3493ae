"""The spec of a TrainingJob: one module for each section, with the name of the section."""
