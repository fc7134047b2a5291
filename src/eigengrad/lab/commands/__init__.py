"""The commands of ``eigengrad``: one file each. :mod:`eigengrad.lab.cli` puts them together."""
