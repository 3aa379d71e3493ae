"""The model families. Those that share names of tensors or fields of `config.json` share a module."""
