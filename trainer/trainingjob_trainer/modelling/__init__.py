"""The model, its sharding over the mesh, its losses, and the programs of a training step."""
