"""An expert-parallel MoE layer in one kernel, its tile order made on the host."""
