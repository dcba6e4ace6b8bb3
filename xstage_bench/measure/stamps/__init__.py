"""From the stamps of a user's own kernel (``cuda/xstage_stamps.cuh``) to what the models judge: a Schedule and its Trace, or tasks."""
