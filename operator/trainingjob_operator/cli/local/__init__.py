"""A job without a cluster: processes of this machine behind the port that the operator uses for a cluster."""
