"""The agent: process 1 of every pod. It keeps the pod, hears of worlds, and starts and ends trainer processes."""
