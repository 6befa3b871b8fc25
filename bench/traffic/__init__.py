"""The parts of `make bench-gateway`: an engine and agents that cost little, servers to compare, and the figures."""
