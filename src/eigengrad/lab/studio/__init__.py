"""The studio: colour and style transfer, the doctor and the results of runs, on a page of this machine's browser.

A small server of Python's standard library (:class:`.server.Studio`) and a page of plain JavaScript: nothing is loaded
from elsewhere, and nothing is sent there.
"""
