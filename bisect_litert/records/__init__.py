"""What a run leaves behind, and what is made of it afterwards without PyTorch and without a GPU."""
