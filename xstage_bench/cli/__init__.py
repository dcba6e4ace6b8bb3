"""The command line: one verb per file, no logic."""


def main() -> None:
    """Run ``xstage``."""
    raise NotImplementedError
