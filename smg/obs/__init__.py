"""What all processes share in memory, and what the gateway tells of itself: the block and its tables, metrics, logs."""
