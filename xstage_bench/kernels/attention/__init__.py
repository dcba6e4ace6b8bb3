"""Attention whose tiles go to the ranks that own their rows, and the same work done one after the other."""
