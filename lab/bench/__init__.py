"""Load on one service in a process of its own: synthetic clusters, clients that see what a caller sees, and figures."""
