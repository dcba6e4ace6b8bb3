"""Files: whole or absent, strict JSON, CSV rows, the folders that ship, plug-ins, and what identifies a kernel."""
