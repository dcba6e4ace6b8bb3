"""Workloads of real models: what they compute and store, as TaskSchedules for a node and a parallel layout."""
