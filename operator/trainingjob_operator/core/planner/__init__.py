"""Planning: from a spec to the plan of every number of slices."""
