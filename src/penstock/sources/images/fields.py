"""Images that are a field of samples, beside their labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.errors import BadSetting
from penstock.sources.formats import field_records_of
from penstock.sources.records.values import BYTES, IMAGE, JPEG, PNG

_IMAGES = (JPEG, PNG, IMAGE)
_WHOLE_NUMBERS = re.compile(r"u?int\d*")


class ImageFields(msgspec.Struct, frozen=True):
    """Finds the image and the label in a sample's bytes."""

    parse: Callable[[bytes], dict[str, Any]]  # from a sample's bytes to its fields
    image: str  # the field of the image
    label: str | None  # the field of the label; None for none

    def __call__(self, sample: bytes) -> tuple[bytes, int]:
        """Return the image as it is encoded, and its label, or 0."""
        values = self.parse(sample)
        label = 0 if self.label is None else int(values[self.label])
        if not -(2**63) <= label < 2**63:
            raise ValueError(f"int64 does not hold the label {label}")
        return values[self.image], label


def image_fields(images: Any, image: str | None, label: str | None) -> tuple[Any, ImageFields]:
    """Return the records of shards, and what finds images and labels in their samples.

    Without ``image`` it is the only field whose type is that of images; without ``label`` there is none.
    """
    records = field_records_of(images)
    if records is None:
        raise BadSetting(
            f"images={images!r}: image= and label= are fields of samples in shards; give mds:FOLDER, "
            "litdata:FOLDER, or tar files"
        )
    fields = records.fields
    encoded = [name for name, kind in fields.items() if kind in _IMAGES]
    if image is None and len(encoded) == 1:
        image = encoded[0]
    if image is None or fields.get(image) not in (*_IMAGES, BYTES):
        wrong = f"{len(encoded)} fields hold images" if image is None else f"image={image!r} holds no images"
        raise BadSetting(f"{records.root}: {wrong}: pass image=, one of {_listed(fields)}")
    if label is not None and not _WHOLE_NUMBERS.fullmatch(fields.get(label, "")):
        raise BadSetting(
            f"{records.root}: label={label!r} holds no whole numbers: pass one of {_listed(fields)}, or labels= "
            "with a label for each image"
        )
    needed = {image} if label is None else {image, label}
    return records, ImageFields(records.parse.only(needed), image, label)


def _listed(fields: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in fields.items())
