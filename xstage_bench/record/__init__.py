"""Run folders: written once, readable after a kill at any moment, never overwritten (docs/file-format.md).

Import from the modules themselves; this package imports nothing, because pyarrow and pandas cost what ``xstage --help`` must not pay.
"""
