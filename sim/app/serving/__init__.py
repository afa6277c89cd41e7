"""A model behind a server: steps of its scheduler are simulated and joined to latencies and throughput."""
