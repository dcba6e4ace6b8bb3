"""xstage-bench: what happens to a GPU's remote stores after they are issued."""

__version__ = "0.1.0"
