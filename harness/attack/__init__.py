"""A battery of bad guests against real nodes: what each costs in loop time, memory and patience."""
