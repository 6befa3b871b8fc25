"""What gateway and trainer meet in: calls and timelines, rewards and credit, and the stores that hold them."""
