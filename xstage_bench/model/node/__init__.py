"""One model of a whole node: a tree of arbiters with eight parameters per pair, for any schedule (docs/node-model.md)."""
