"""What other profilers write, as far as a diagnosis needs it: kernels' durations, and time lines inside a kernel."""
