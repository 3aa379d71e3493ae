"""Compiling the train step of a plan without a device, to see what it needs before anything is scheduled."""
