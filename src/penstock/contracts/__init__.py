"""The seams of Penstock, one Protocol each; ``penstock.testing`` ships a test suite for each."""

from penstock.contracts.arrays import ByteArray, Ids
from penstock.contracts.gpu import DeviceBytes, Event, Gpu
from penstock.contracts.images import Decoder, Region
from penstock.contracts.joints import MOST_CHANGES, MOST_JOINTS, NO_JOINTS, Joints, Known, last_read
from penstock.contracts.reader import Completed, Extents, Numbers, Opened, Reader
from penstock.contracts.records import Place, Records
from penstock.contracts.ring import Ring, WritableRing
from penstock.contracts.source import Cursor, Source, SourceBlock, Tree, Wanted

__all__ = [
    "MOST_CHANGES",
    "MOST_JOINTS",
    "NO_JOINTS",
    "ByteArray",
    "Completed",
    "Cursor",
    "Decoder",
    "DeviceBytes",
    "Event",
    "Extents",
    "Gpu",
    "Ids",
    "Joints",
    "Known",
    "Numbers",
    "Opened",
    "Place",
    "Reader",
    "Records",
    "Region",
    "Ring",
    "Source",
    "SourceBlock",
    "Tree",
    "Wanted",
    "WritableRing",
    "last_read",
]
