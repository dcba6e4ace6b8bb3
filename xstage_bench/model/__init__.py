"""From Traces to three numbers per pair, and from three numbers to predictions. Needs neither a GPU nor a display."""
