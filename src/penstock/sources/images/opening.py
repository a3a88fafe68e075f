"""Opens images, whatever they lie in: files, members of tars, fields of samples, or columns of tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock.errors import BadSetting
from penstock.io.cache.cache import Cache
from penstock.linux.cgroups import cores
from penstock.sources.formats import field_records_of, has_prefix, records_of, tables_of
from penstock.sources.images.labels import LabelledRecords, Labels, labels_of
from penstock.sources.records.values import BYTES, IMAGE, JPEG, PNG
from penstock.sources.samples.sample_source import OrderSettings, RecordSamples

if TYPE_CHECKING:
    from penstock.sources.images.recipe import ImageFields
    from penstock.sources.images.tabled import TableImages

_IMAGES = (JPEG, PNG, IMAGE)
_WHOLE_NUMBERS = re.compile(r"u?int\d*")


class OpenedImages(NamedTuple):
    """Images, and what is known of them."""

    data: RecordSamples | TableImages
    records: LabelledRecords  # their names and classes
    labels: Labels | None  # those that do not lie in fields
    fields: ImageFields | None  # what finds image and label in a sample; None where the image is all of it


def opened_images(
    images: Any,
    endings: Sequence[str],
    image: str | None,
    label: str | None,
    labels: Any,
    cache: Cache | None,
    settings: OrderSettings,
) -> OpenedImages:
    """Open what ``ImageSource`` is told."""
    if label is not None and labels is not None:
        raise BadSetting(f"label={label!r} and labels= are both given: pass one of them")
    fields = None
    if (tables := tables_of(images, cache)) is not None:
        from penstock.sources.images.tabled import TableImages, classes_of, image_tables
        from penstock.sources.samples.tables import order_of

        threads = max(1, int(cores()))
        opened = image_tables(tables, image, label, threads)
        data = TableImages(opened, order_of(opened, settings), threads, classes_of(tables.schema, label))
        records = cast("LabelledRecords", data)
    else:
        if image is None and label is None and not has_prefix(images):
            records = records_of(images, endings)
        else:
            records, fields = image_fields(images, image, label)
        data = RecordSamples(records, settings.order(len(records.names)))
    in_fields = tables is not None or fields is not None
    labelled = None if labels is None and in_fields else labels_of(records, labels)
    data.beside = None if labelled is None else labelled.values
    return OpenedImages(data, records, labelled, fields)


def image_fields(images: Any, image: str | None, label: str | None) -> tuple[Any, ImageFields]:
    """Return the records of shards, and what finds images and labels in their samples.

    Without ``image`` it is the only field whose type is that of images; without ``label`` there is none.
    """
    from penstock.sources.images.recipe import ImageFields

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
