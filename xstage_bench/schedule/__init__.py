"""What is asked of a device and what comes back: stores, bursts, tasks, scenes, watches; their files; the Device protocol."""
