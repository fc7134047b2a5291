"""What a JPEG file asks its decoder to do, counted before it is done."""

from __future__ import annotations

import re

__all__ = ["require_few_scans"]

#: Scans over all pixels: a progressive file has about ten. One of 100 bytes makes the decoder go over 89 million pixels
#: again, which takes 50 ms.
_MOST_SCANS = 50
#: Segments of a file, which Pillow reads one by one. Of 64 kB each, they hold 640 MB of metadata.
_MOST_SEGMENTS = 10_000

_BEGINS = b"\xff\xd8\xff"
_END, _SCAN = 0xD9, 0xDA
#: The next marker; within the data of a scan, 0xff is followed by 0, by the number of a restart, or by itself.
_MARKER = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")


def require_few_scans(content: bytes) -> None:
    """Refuse a JPEG file with so many scans or segments that it would take minutes to decode; others pass.

    Raises:
        ValueError: says how many are allowed.
    """
    if not content.startswith(_BEGINS):
        return
    scans, segments, place = 0, 0, 2
    while (marker := _MARKER.search(content, place)) is not None and marker[1][0] != _END:
        scans += marker[1][0] == _SCAN
        segments += 1
        if scans > _MOST_SCANS or segments > _MOST_SEGMENTS:
            raise ValueError(f"it has more than {_MOST_SCANS} scans, or {_MOST_SEGMENTS:,} segments")
        place = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2], "big")
