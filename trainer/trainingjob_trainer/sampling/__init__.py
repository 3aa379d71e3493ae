"""Generation of text from the current parameters, on the mesh that trains them."""
