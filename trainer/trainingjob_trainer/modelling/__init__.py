"""What is trained: the model, how it lies over the mesh, its losses, and the programs of a step."""
