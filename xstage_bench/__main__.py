"""``python -m xstage_bench`` is the same program as ``xstage``."""

from xstage_bench.cli import main

if __name__ == "__main__":
    main()
