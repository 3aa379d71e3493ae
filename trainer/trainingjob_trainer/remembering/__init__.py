"""What hosts keep of a state in their own memory, and how a world goes on from it."""
