"""The commands of ``eigengrad``: one file each. :mod:`eigengrad.lab.app` puts them together."""
