"""Passes over feature maps, and the algebra of whitening and colouring between them."""
