"""Model definitions: decoder, MLP and experts, and how their parameters are created."""
