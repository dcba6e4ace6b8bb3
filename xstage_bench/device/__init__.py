"""The devices that execute schedules: ``cuda`` (real GPUs), ``sim`` (a queueing model) and ``replay`` (a recording)."""
