"""What a kernel loses to its stores, and to which cause: from two timings, or from a time line."""
