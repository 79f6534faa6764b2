"""Dan, Mukherjee, Das, Gampa: Dynamics of Local Elasticity During Training of Neural Nets."""
