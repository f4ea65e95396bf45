"""Reads and writes deletion vectors: the numbers of the rows of a file that do not count any more.

The form is that of Delta's protocol: a bitmap of 64-bit numbers in the portable form of Roaring,
behind a magic number. A vector is in a file of the table, or as text in the commit.
"""

from __future__ import annotations

import base64
import uuid
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyroaring import BitMap64

_MAGIC: Final = (1681511377).to_bytes(4, "little")
_VERSION: Final = b"\x01"
_ID_LENGTH: Final = 20
_RFC_1924: Final = (
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
)
_Z85: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)


def read_vector(files: FileSystem, descriptor: Mapping[str, Any]) -> BitMap64:
    """The numbers of the deleted rows that a vector has. `files` are those of the table.

    Raises `ValueError` if the vector is damaged.
    """
    from pyroaring import BitMap64

    text, kind = descriptor["pathOrInlineDv"], descriptor["storageType"]
    if kind == "i":
        data = _decoded(text)[: descriptor["sizeInBytes"]]
    else:
        name, size = _file_of(text), descriptor["sizeInBytes"]
        with files.open_input_file(name) as file:
            file.seek(descriptor.get("offset") or 0)
            framed = bytes(file.read(size + 8))
        data = framed[4 : size + 4]
        if framed[:4] != size.to_bytes(4) or framed[size + 4 :] != zlib.crc32(data).to_bytes(4):
            raise ValueError(f"the deletion vector in {name} is damaged")
    if kind not in ("i", "u") or not data.startswith(_MAGIC):
        raise ValueError(f"the deletion vector {text!r} has an unknown form")
    vector = BitMap64.deserialize(data[len(_MAGIC) :])
    if len(vector) != descriptor["cardinality"]:
        raise ValueError(f"the deletion vector {text!r} is damaged")
    return vector


def write_vectors(files: FileSystem, vectors: Mapping[str, BitMap64]) -> dict[str, dict[str, Any]]:
    """Write vectors by name into one file of the table. Returns their descriptors. Without vectors,
    there is no file.
    """
    if not vectors:
        return {}
    id_ = uuid.uuid4()
    content, descriptors = bytearray(_VERSION), dict[str, dict[str, Any]]()
    for name, rows in vectors.items():
        data = _MAGIC + rows.serialize()
        descriptors[name] = {
            "storageType": "u",
            "pathOrInlineDv": _encoded(id_.bytes),
            "offset": len(content),
            "sizeInBytes": len(data),
            "cardinality": len(rows),
        }
        content += len(data).to_bytes(4) + data + zlib.crc32(data).to_bytes(4)
    with files.open_output_stream(f"deletion_vector_{id_}.bin") as file:
        file.write(bytes(content))
    return descriptors


def _file_of(text: str) -> str:
    prefix, id_ = text[:-_ID_LENGTH], uuid.UUID(bytes=_decoded(text[-_ID_LENGTH:]))
    name = f"deletion_vector_{id_}.bin"
    return f"{prefix}/{name}" if prefix else name


def _encoded(data: bytes) -> str:
    return base64.b85encode(data).decode().translate(str.maketrans(_RFC_1924, _Z85))


def _decoded(text: str) -> bytes:
    return base64.b85decode(text.translate(str.maketrans(_Z85, _RFC_1924)))
