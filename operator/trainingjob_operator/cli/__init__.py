"""The command line `trainingjob`, also callable as `kubectl trainingjob`."""
