"""What a file is that is no text of rows, by its first bytes, and what to do with it."""

from __future__ import annotations

import re

HEAD = 512  # bytes that are looked at

# Pattern of the first bytes → what begins so, and what to do. The first that fits counts.
_BINARY = (
    (rb".{257}ustar", "a tar archive", "unpack it (tar xf) and name the files in it"),
    (rb"PK\x03\x04.{26}[^\x00]*\.npy", "NumPy arrays (.npz)", "write their rows as CSV or Parquet"),
    (rb"PK\x03\x04.{26}(\[Content_Types\]|xl/)", "an Office file (.xlsx)", "save it as CSV"),
    (rb"PK\x03\x04", "a zip archive", "unpack it (unzip) and name the files in it"),
    (rb"\x93NUMPY", "a NumPy array (.npy)", "write its rows as CSV or Parquet"),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Office file (.xls)", "save it as CSV"),
    (rb"ARROW1\x00\x00|FEA1|\xff{4}", "Arrow's format (.arrow, .feather)", "write its rows as CSV or Parquet"),
    (rb"ORC[^ -~\t]", "ORC", "write its rows as CSV or Parquet"),
    (rb"Obj\x01", "Avro", "write its rows as CSV or Parquet"),
    (rb"\x1f\x8b", "compressed with gzip", "unpack it (gunzip)"),
    (rb"BZh[1-9]", "compressed with bzip2", "pipe it (bunzip2 -c FILE | … /dev/stdin)"),
    (rb"\xfd7zXZ\x00", "compressed with xz", "pipe it (unxz -c FILE | … /dev/stdin)"),
    (rb"\x28\xb5\x2f\xfd", "compressed with zstd", "pipe it (unzstd -c FILE | … /dev/stdin)"),
    (rb"\x04\x22\x4d\x18", "compressed with lz4", "pipe it (unlz4 -c FILE | … /dev/stdin)"),
    (rb"\x1f\x9d", "compressed with compress", "pipe it (uncompress -c FILE | … /dev/stdin)"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it (7z x) and name the files in it"),
    (rb"Rar!\x1a\x07", "a rar archive", "unpack it (unrar x) and name the files in it"),
    (rb"\xff\xfe|\xfe\xff", "UTF-16", "convert it (iconv -f UTF-16 -t UTF-8)"),
    (rb"version https://git-lfs\.github\.com/", "a Git LFS pointer", "fetch the file itself (git lfs pull)"),
    (rb"(\xef\xbb\xbf)?\s*<(!doctype\s+html|html)\b", "an HTML page", "a failed download leaves one; fetch it again"),
)
# Rows may begin so, too: asked when the first line is not what it should be.
_TEXT = (
    (rb'(\xef\xbb\xbf)?\s*(\{\s*["}]|\[\s*[\[{])', "JSON", "write its rows as CSV or Parquet"),
    (rb"(\xef\xbb\xbf)?\s*<\?xml\b", "XML", "a failed download leaves some; fetch it again, or write rows as CSV"),
)


def begins_as_parquet(head: bytes) -> bool:
    return head.startswith(b"PAR1")


def other_format(head: bytes, text: bool = False) -> str | None:
    """What a file is that begins with this, and what to do; None: perhaps rows. text: forms of text too."""
    for pattern, what, advice in _BINARY + _TEXT * text:
        if re.match(pattern, head[:HEAD], re.DOTALL | re.IGNORECASE * pattern.endswith(rb"\b")):
            return f"{what}; {advice}"
    return None
