"""Programs of the neighbouring sizes, compiled while a world trains."""
