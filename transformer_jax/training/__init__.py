"""Loss, optimiser, step, loop: what changes parameters."""
