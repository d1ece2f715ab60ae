"""The model as torch.export sees it, and what that alone predicts."""
