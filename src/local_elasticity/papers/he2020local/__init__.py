"""He & Su, "The Local Elasticity of Neural Networks" (2020)."""
