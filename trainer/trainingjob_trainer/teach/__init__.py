"""The program that stores probabilities of a teacher, for jobs that distill it without running it."""
