"""The same work on many workers, what it will cost, and feature maps whose cost grows with n and not with n²."""
