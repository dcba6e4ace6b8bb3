"""What this machine is: GPUs, links, driver, environment, and the doctor. Nothing here creates a CUDA context."""
