"""The device mesh, the sharding of tensors over it, and the order of collectives."""
