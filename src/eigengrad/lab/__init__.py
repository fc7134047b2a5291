"""The laboratory: train networks through an eigendecomposition, and redo the experiments of the paper.

It needs the extra `lab`, and nothing in the library needs it.
"""
