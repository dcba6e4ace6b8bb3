"""Kernels that store to their peers from the tile that has just been computed, and the same work done one after the other."""
