"""Many nodes at once: their runs as one dataset, each link against the population of its kind (docs/operate.md)."""
