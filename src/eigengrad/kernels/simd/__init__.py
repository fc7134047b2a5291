"""Explicit SIMD for numba: vectors as values, loads and stores, transposes, and the products that are built from
them.
"""
