"""A video of one evaluated episode: MP4 or GIF, and in TensorBoard."""

from __future__ import annotations

import io
import itertools
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..base.errors import ResourcesError, UsageError, one_line
from ..base.files import write_whole
from ..base.system import sync
from ..cli import progress_bar
from ..envs import SimulationError
from ..envs.simulation.rendering import Picture, open_renderer
from ..policies.names import return_words, target_words, weights_words
from .scores import Score

if TYPE_CHECKING:
    from PIL.Image import Image

GIF_FPS = 50  # browsers play GIFs with less than 0.02 s between frames at a tenth of the speed
BOARD_FPS = 25  # in TensorBoard, whose files grow with it
TAG = "episode"
_SUFFIX = ".video"  # suffix of its event file
# Which episode of the first target return is filmed, by its return.
EPISODES: dict[str, Callable[..., Any]] = {"first": lambda returns: 0, "best": np.argmax, "worst": np.argmin}


class Video:
    """Films one episode: records its actions during the evaluation, then repeats them with a camera.

    `seed` is that of the first episode. `which` is a name in EPISODES; all except "first" record the actions of all.

    Raises before the evaluation: UsageError if it is neither MP4 nor GIF, ResourcesError if no renderer works or MP4
    cannot be written.
    """

    def __init__(self, file: Path, env_id: str, env_kwargs: Mapping[str, Any], seed: int, which: str = "first") -> None:
        suffix = file.suffix.lower()
        if suffix not in (".mp4", ".gif"):
            raise UsageError(f"--video {file}: expected a file name that ends in .mp4 or .gif")
        if suffix == ".mp4":
            try:
                import imageio_ffmpeg

                imageio_ffmpeg.get_ffmpeg_exe()
            except (ImportError, RuntimeError) as error:
                way_out = "pip install 'aaren-rl[video]', or use a .gif"
                raise ResourcesError(f"MP4 needs ffmpeg ({one_line(error, 100)}): {way_out}") from error
        self.file, self._which, self._is_mp4 = file, which, suffix == ".mp4"
        self._played = env_id, env_kwargs
        self._renderer = open_renderer(*self._played, seed)
        self._noted: dict[int, list[npt.NDArray[np.float32]]] = defaultdict(list)

    def close(self) -> None:
        self._renderer.close()

    def note(self, environments: npt.NDArray[np.int64], actions: npt.NDArray[np.float32]) -> None:
        """Record the actions of the episode, or of all. The `on_action` of a rollout."""
        for environment, action in zip(environments.tolist(), actions, strict=True):
            if environment == 0 or self._which != "first":
                self._noted[environment].append(action.copy())

    def write(self, score: Score, run: Path) -> str:
        """Write the file, and TensorBoard events if `run` is, or is in, a run folder. Returns a line about it.

        `score` is that of the recorded rollout. Raises SimulationError if the environment fails or does not repeat the
        episode, ResourcesError if the file cannot be written.
        """
        index = int(EPISODES[self._which](score.returns))
        if index:
            self._renderer.close()
            self._renderer = open_renderer(*self._played, score.seed + index)
        # The run folder that `run` is or is in: TensorBoard shows the video with its logs.
        board = next((folder for folder in (run, run.resolve().parent) if (folder / "metrics.jsonl").is_file()), None)
        noted, earned = self._noted[index], score.returns[index]
        caption = (
            f"{score.env}, {score.agent}, training seed {score.training_seed}, {score.updates} gradient steps, "
            f"{weights_words(score.weights)}, rollout {score.acting()}, {score.env_id} from seed {score.seed + index}, "
            f"target return {target_words(score.target_return)}, return {earned}, {len(noted)} steps{score.choosing()}"
        )
        try:
            small = self._film(noted, earned, caption)
            if board is not None:
                _write_events(board, score.updates, small, caption)
        except OSError as error:
            raise ResourcesError(f"--video {self.file}: {one_line(error)}") from error
        shown = "" if board is None else f", and in TensorBoard ({board})"
        return f"video: {self.file}{shown}: {caption}; drawn with {self._renderer.backend or 'the default renderer'}"

    def _film(self, actions: Sequence[npt.NDArray[np.float32]], expected: float, caption: str) -> Gif:
        """Write the file. Returns the content for TensorBoard."""
        fps, shape = self._renderer.fps, self._renderer.first.shape
        whole, small = Gif(fps, GIF_FPS), Gif(fps, BOARD_FPS, shrink=2)
        with _mp4(self.file, fps, shape, caption) if self._is_mp4 else nullcontext(whole.add) as add:
            wanted = 1 if self._is_mp4 else whole.stride
            for step, picture in self._pictures(actions, expected, (wanted, small.stride)):
                if step % wanted == 0:
                    add(picture)
                if step % small.stride == 0:
                    small.add(picture)
        if not self._is_mp4:
            write_whole(self.file, whole.encode(caption))
        return small

    def _pictures(
        self, actions: Sequence[npt.NDArray[np.float32]], expected: float, strides: tuple[int, ...]
    ) -> Iterator[tuple[int, Picture]]:
        """The frames at multiples of a stride, with their steps."""
        yield 0, _labeled(self._renderer.first, 0, 0.0)
        total, ended = 0.0, False
        bar = progress_bar(iterable=actions, desc="video", unit="step", leave=False)
        for step, action in enumerate(bar, start=1):
            draw = any(step % stride == 0 for stride in strides)
            reward, ended, picture = self._renderer.step(action, draw=draw)
            total += reward
            if picture is not None:
                yield step, _labeled(picture, step, total)
        if total != expected or not ended:
            raise SimulationError(
                f"no video: the environment does not repeat an episode (return {expected:g}, then {total:g} with the "
                "same seed and actions); its randomness must come from the seed of reset() alone"
            )


def _labeled(picture: Picture, step: int, total: float) -> Picture:
    """A frame with the step and the return so far in its upper left corner."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(picture)
    draw, text = ImageDraw.Draw(image), f"step {step:,}, return {return_words(total)}"
    font = ImageFont.load_default(max(10, image.height // 30))
    left, top, right, bottom = draw.textbbox((6, 4), text, font)
    draw.rectangle((left - 4, top - 3, right + 4, bottom + 3), fill="black")
    draw.text((6, 4), text, fill="white", font=font)
    return np.asarray(image)


@contextmanager
def _mp4(file: Path, fps: float, shape: tuple[int, ...], caption: str) -> Iterator[Callable[[Picture], None]]:
    """Yields a function that sends a frame to ffmpeg, which writes H.264 to a temporary file, renamed at the end."""
    import imageio_ffmpeg

    temporary = file.with_name(f".{file.stem}.{os.getpid()}.tmp.mp4")
    made = {"fps": fps, "macro_block_size": 2, "ffmpeg_log_level": "error"}  # H.264 in 4:2:0 needs even side lengths
    said = ["-movflags", "+faststart", "-metadata", f"comment={caption}"]
    ffmpeg = imageio_ffmpeg.write_frames(str(temporary), (shape[1], shape[0]), output_params=said, **made)
    ffmpeg.send(None)
    try:
        yield ffmpeg.send
        ffmpeg.close()
        sync(temporary)
        os.replace(temporary, file)
    finally:
        ffmpeg.close()
        temporary.unlink(missing_ok=True)


class Gif:
    """Every `stride`-th frame, at most `limit` per second, at the speed of the episode; sides divided by `shrink`."""

    def __init__(self, fps: float, limit: float, shrink: int = 1) -> None:
        self._fps, self._shrink, self.stride = fps, shrink, max(1, math.ceil(fps / limit))
        self.pictures: list[Image] = []

    def add(self, picture: Picture) -> None:
        """Add a frame in 256 colors, one byte per pixel."""
        from PIL import Image

        image = Image.fromarray(picture)
        self.pictures.append((image.reduce(self._shrink) if self._shrink > 1 else image).quantize())

    def encode(self, caption: str) -> bytes:
        """The content of the file."""
        # GIF counts in 0.01 s. Rounding times instead of pauses keeps the average speed right.
        times = [round(100 * i * self.stride / self._fps) for i in range(len(self.pictures))]
        pauses = [10 * (after - before) for before, after in itertools.pairwise(times)]
        file, (first, *others) = io.BytesIO(), self.pictures
        shown = [*pauses, 1000]  # ms; the last frame stays for a moment before the loop restarts
        said = caption.encode()
        first.save(file, "GIF", save_all=True, append_images=others, duration=shown, loop=0, comment=said)
        return file.getvalue()


def _write_events(board: Path, step: int, gif: Gif, caption: str) -> None:
    """Write the video at its gradient step, in its own event file. Removes that of an earlier evaluation."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from torch.utils.tensorboard import FileWriter

    earlier = list(board.glob(f"events.out.tfevents.*{_SUFFIX}"))
    # By hand, since SummaryWriter accepts neither encoded images nor a description.
    width, height = gif.pictures[0].size
    image = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=gif.encode(caption))
    value = Summary.Value(tag=TAG, image=image, metadata=SummaryMetadata(summary_description=caption))
    with closing(FileWriter(str(board), filename_suffix=_SUFFIX)) as writer:
        writer.add_summary(Summary(value=[value]), step)
    for file in earlier:
        file.unlink(missing_ok=True)  # another evaluation may have been faster
