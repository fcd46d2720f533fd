"""TensorBoard's event files, for what `SummaryWriter` cannot write: descriptions, pictures that are encoded already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from torch.utils.tensorboard import FileWriter


class Point(NamedTuple):
    """A value on a curve; `step` is the curve's x axis."""

    step: int
    value: float


@contextmanager
def event_file(folder: Path, suffix: str = "") -> Iterator[FileWriter]:
    """A fresh event file in `folder`, whose name ends in `suffix`, flushed and closed at the end."""
    writer = FileWriter(str(folder), filename_suffix=suffix)
    try:
        yield writer
    finally:
        writer.close()


def write_curve(writer: FileWriter, tag: str, points: Iterable[Point], description: str) -> None:
    """Writes the points of a curve; TensorBoard shows the description (Markdown) beside the chart's title."""
    for step, value in points:
        metadata = _metadata("scalars", description)
        writer.add_summary(Summary(value=[Summary.Value(tag=tag, simple_value=value, metadata=metadata)]), step)


def write_image(
    writer: FileWriter, tag: str, encoded: bytes, size: tuple[int, int], step: int = 0, description: str = ""
) -> None:
    """Writes a PNG, or a GIF, which TensorBoard plays; `encoded` is the file's content, `size` width and height."""
    image = Summary.Image(width=size[0], height=size[1], colorspace=3, encoded_image_string=encoded)
    metadata = _metadata("images", description)
    writer.add_summary(Summary(value=[Summary.Value(tag=tag, image=image, metadata=metadata)]), step)


def _metadata(plugin: str, description: str) -> SummaryMetadata:
    return SummaryMetadata(summary_description=description, plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
