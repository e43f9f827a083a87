"""HOW it is trained, in worker processes only: Megatron's parallel state, DDP, optimizer and schedules; the loop; the CPU bridge."""
