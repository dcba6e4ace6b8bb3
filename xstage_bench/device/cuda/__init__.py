"""Real GPUs. The only room (with ``fused``) that may import cupy, and then only inside functions of the worker process."""
