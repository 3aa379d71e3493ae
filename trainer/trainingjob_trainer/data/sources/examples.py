"""The features of a `tf.train.Example`, decoded from the wire format of protocol buffers.

Source: https://protobuf.dev/programming-guides/encoding and tensorflow/core/example/{example,feature}.proto.
"""

from collections.abc import Iterator

LENGTH = 2
"""Wire type of texts, bytes and messages: their length comes first."""
MAX_VARINT_BYTES = 10
FEATURES = FEATURE = KEY = VALUE = 1
FEATURE_OF_ENTRY = 2
KINDS = {1: "bytes", 2: "floats", 3: "integers"}
"""What a feature holds, by the number of its field."""

type Feature = tuple[str, list[bytes]]
"""What a feature holds, and its values if they are bytes."""


def parse_example(record: bytes) -> dict[str, Feature] | None:  # None: it is no Example
    """Return the features of an Example by name."""
    try:
        features: dict[str, Feature] = {}
        for wrapped in _list_messages(record, FEATURES):
            for entry in _list_messages(wrapped, FEATURE):
                fields = dict(_list_fields(entry))
                features[fields[KEY].decode()] = _parse_feature(fields.get(FEATURE_OF_ENTRY, b""))
    except (ValueError, KeyError, IndexError):
        return None
    return features or None


def _parse_feature(feature: bytes) -> Feature:
    for number, content in _list_fields(feature):
        kind = KINDS[number]
        return kind, list(_list_messages(content, VALUE)) if kind == "bytes" else []
    return "nothing", []


def _list_messages(content: bytes, expected_number: int) -> Iterator[bytes]:
    """Yield the content of the fields of a message, all of which must have one number."""
    for number, value in _list_fields(content):
        if number != expected_number:
            raise ValueError(f"unknown field {number}")
        yield value


def _list_fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the fields of a message, which must have lengths: an Example has no others."""
    place = 0
    while place < len(content):
        tag, place = _read_varint(content, place)
        if tag & 7 != LENGTH or tag >> 3 == 0:
            raise ValueError(f"unknown tag {tag}")
        length, place = _read_varint(content, place)
        if place + length > len(content):
            raise ValueError("truncated")
        yield tag >> 3, content[place : place + length]
        place += length


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    """Return a number, and the place after it."""
    number = 0
    for digit in range(MAX_VARINT_BYTES):
        byte = content[place + digit]
        number |= (byte & 0x7F) << (7 * digit)
        if byte < 0x80:
            return number, place + digit + 1
    raise ValueError("a number without end")
