"""How schedules are measured: probes, plans, the one loop, and what is made of the traces."""
