"""A battery of hostile guests against real nodes: the loop time, memory and waiting time that each of them costs."""
