"""How a PyTorch model gets in, which of its modules are blocks, and what PyTorch computes at each."""
