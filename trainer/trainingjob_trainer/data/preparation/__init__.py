"""Preparation: the documents of a dataset are tokenized once, in parts, by the processes of all hosts."""
