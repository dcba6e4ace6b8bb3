"""Predicts TaskSchedules: compute, stores and dependencies of every producer over the node model's link."""
