"""The process around a training step: devices, process group, compile cache, preflight checks, errors, exit."""
