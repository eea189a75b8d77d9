"""What is learnt of kernels: the model of their times, the policy that decides by it, and wisdom, kept on disk."""
