"""What to change about a kernel so that its stores cost less, judged by the calibrated model."""
