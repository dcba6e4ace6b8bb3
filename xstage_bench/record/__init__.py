"""Run folders: written once, readable after a kill at any moment, never overwritten (docs/files.md).

Import from the modules themselves; this package imports nothing, because pyarrow and pandas cost what ``xstage --help`` must not pay.
"""
