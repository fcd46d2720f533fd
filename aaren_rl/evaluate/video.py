"""A video of one of the episodes that an evaluation scored: MP4 or GIF, and in TensorBoard."""

from __future__ import annotations

import io
import itertools
import math
import os
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from ..cli import progress_bar
from ..envs import SimulationError
from ..envs.files import write_whole
from ..envs.simulation.rendering import Picture, Renderer, open_renderer
from ..envs.system import sync
from ..errors import ResourcesError, UsageError, one_line
from ..policies.card import PolicyCard
from ..policies.names import asked_words
from .scores import Score

if TYPE_CHECKING:
    from PIL.Image import Image

GIF_FPS = 50  # browsers play what has less than 0.02 s between two pictures at a tenth of its speed
BOARD_FPS = 25  # in TensorBoard, whose files grow with it
TAG = "episode"
_SUFFIX = ".video"  # of its event file
# Which episode of the first asked return is filmed, by their returns.
EPISODES: dict[str, Callable[[Sequence[float]], int]] = {
    "first": lambda returns: 0,
    "best": lambda returns: int(np.argmax(returns)),
    "worst": lambda returns: int(np.argmin(returns)),
}


def open_video(
    file: Path | None, card: PolicyCard, seed: int, which: str = "first"
) -> AbstractContextManager[Video | None]:
    """The video that `--video` asks for, if it does; what it needs is looked for at once, before anything is scored.

    Args:
        file: where it goes; None: no video.
        card: of the policy that will play.
        seed: of the first episode.
        which: a name in EPISODES.

    Raises:
        UsageError: neither MP4 nor GIF, or its folder does not exist.
        ResourcesError: nothing here draws the environment, or MP4 cannot be written.
    """
    if file is None:
        return nullcontext()
    if file.suffix.lower() not in (".mp4", ".gif"):
        raise UsageError(f"--video {file}: neither .mp4 nor .gif")
    if file.suffix.lower() == ".mp4":
        _require_ffmpeg()
    at = partial(open_renderer, card.env_id, card.env_kwargs)
    return Video(file, at(seed), which, lambda index: at(seed + index))


class Video:
    """One episode: its actions are noted while it is scored, then taken again before a camera.

    Args:
        file: where it goes.
        renderer: of the first episode.
        which: a name in EPISODES: of the best and the worst the actions of all are noted.
        another: gives the renderer of another episode by its number.
    """

    def __init__(
        self,
        file: Path,
        renderer: Renderer,
        which: str = "first",
        another: Callable[[int], Renderer] | None = None,
    ) -> None:
        """Nothing is written yet."""
        self.file = file
        self._renderer, self._which, self._another = renderer, which, another
        self._noted: dict[int, list[npt.NDArray[np.float32]]] = defaultdict(list)

    def __enter__(self) -> Video:
        """The video itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Lets go of the renderer."""
        self._renderer.close()

    def note(self, environments: npt.NDArray[np.int64], actions: npt.NDArray[np.float32]) -> None:
        """Keeps the actions of the episode, or of all; the `on_action` of a rollout."""
        for environment, action in zip(environments.tolist(), actions, strict=True):
            if environment == 0 or self._which != "first":
                self._noted[environment].append(action.copy())

    def write(self, score: Score, run: Path) -> str:
        """Writes the file, and TensorBoard's events where `run` is, or lies in, a run folder.

        Args:
            score: of the rollout whose actions were noted.
            run: the run folder or policy folder.

        Returns:
            A line that says what was written.

        Raises:
            SimulationError: the environment did not repeat the episode, or failed.
            ResourcesError: the file cannot be written.
        """
        index = EPISODES[self._which](score.returns)
        if index and self._another is not None:
            self._renderer.close()
            self._renderer = self._another(index)
        caption = _caption(score, index, len(self._noted[index]))
        fps, size = self._renderer.fps, self._renderer.first.shape
        whole: Sink = Gif(fps, GIF_FPS) if self.file.suffix.lower() == ".gif" else Mp4(self.file, fps, size, caption)
        small = Gif(fps, BOARD_FPS, shrink=2)
        board = board_folder(run)
        try:
            self._play([whole, small], self._noted[index], score.returns[index])
            whole.save(self.file, caption)
            if board is not None:
                _write_events(board, score.updates, small.encode(caption), small.size, caption)
        except OSError as error:
            raise ResourcesError(f"--video {self.file}: {one_line(error)}") from error
        finally:
            whole.discard()
        shown = "" if board is None else f", and in TensorBoard ({board})"
        return f"video: {self.file}{shown}: {caption}; drawn with {self._renderer.backend or 'the default renderer'}"

    def _play(self, sinks: Sequence[Sink], actions: Sequence[npt.NDArray[np.float32]], expected: float) -> None:
        first = _labelled(self._renderer.first, 0, 0.0)
        for sink in sinks:
            sink.add(0, first)
        total, ended = 0.0, False
        bar = progress_bar(iterable=actions, desc="video", unit="step", leave=False)
        for step, action in enumerate(bar, start=1):
            taking = [sink for sink in sinks if sink.wants(step)]
            reward, ended, picture = self._renderer.step(action, draw=bool(taking))
            total += reward
            if picture is not None:
                picture = _labelled(picture, step, total)
                for sink in taking:
                    sink.add(step, picture)
        if total != expected or not ended:
            raise SimulationError(
                f"no video: the environment does not repeat an episode (return {expected:g}, then {total:g} with the "
                "same seed and actions); its randomness must come from the seed of reset() alone"
            )


def _labelled(picture: Picture, step: int, total: float) -> Picture:
    """A picture with the step and the return so far in its upper left corner."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(picture)
    draw, text = ImageDraw.Draw(image), f"step {step:,}, return {total:,.1f}"
    font = ImageFont.load_default(max(10, image.height // 30))
    left, top, right, bottom = draw.textbbox((6, 4), text, font)
    draw.rectangle((left - 4, top - 3, right + 4, bottom + 3), fill="black")
    draw.text((6, 4), text, fill="white", font=font)
    return np.asarray(image)


class Mp4:
    """H.264, every step, written by ffmpeg beside the file's place."""

    def __init__(self, file: Path, fps: float, shape: tuple[int, ...], caption: str) -> None:
        """Starts ffmpeg at the first picture."""
        import imageio_ffmpeg

        self._temporary = file.with_name(f".{file.stem}.{os.getpid()}.tmp.mp4")
        self._ffmpeg: Generator[None, Picture | None, None] = imageio_ffmpeg.write_frames(
            str(self._temporary),
            (shape[1], shape[0]),
            fps=fps,
            macro_block_size=2,  # H.264 in 4:2:0 needs even sides
            ffmpeg_log_level="error",
            output_params=["-movflags", "+faststart", "-metadata", f"comment={caption}"],
        )
        self._ffmpeg.send(None)

    def wants(self, step: int) -> bool:
        """Whether it takes the picture after that step: every one."""
        return True

    def add(self, step: int, picture: Picture) -> None:
        """Hands it to ffmpeg."""
        self._ffmpeg.send(picture)

    def save(self, file: Path, caption: str) -> None:
        """Ends ffmpeg and renames its file."""
        self._ffmpeg.close()
        sync(self._temporary)
        os.replace(self._temporary, file)

    def discard(self) -> None:
        """Ends ffmpeg and removes its file."""
        self._ffmpeg.close()
        self._temporary.unlink(missing_ok=True)


class Gif:
    """As many pictures as `limit` a second allows, at the episode's own speed."""

    def __init__(self, fps: float, limit: float, shrink: int = 1) -> None:
        """Nothing taken yet; sides are divided by `shrink`."""
        self._fps, self._shrink, self._stride = fps, shrink, max(1, math.ceil(fps / limit))
        self._pictures: list[Image] = []
        self.size = (0, 0)

    def wants(self, step: int) -> bool:
        """Every stride-th."""
        return step % self._stride == 0

    def add(self, step: int, picture: Picture) -> None:
        """Keeps it in 256 colours, a byte a pixel."""
        from PIL import Image

        image = Image.fromarray(picture)
        if self._shrink > 1:
            image = image.reduce(self._shrink)
        self.size = image.size
        self._pictures.append(image.quantize(dither=Image.Dither.NONE))

    def encode(self, caption: str) -> bytes:
        """The file's content."""
        # GIF counts in 0.01 s. Rounding the times, not the pauses between them, keeps the speed right on the whole.
        times = [round(100 * i * self._stride / self._fps) for i in range(len(self._pictures))]
        pauses = [10 * (after - before) for before, after in itertools.pairwise(times)]
        file = io.BytesIO()
        self._pictures[0].save(
            file,
            "GIF",
            save_all=True,
            append_images=self._pictures[1:],
            duration=[*pauses, 1000],  # ms; the last picture stays a moment before it begins again
            loop=0,
            comment=caption.encode(),
        )
        return file.getvalue()

    def save(self, file: Path, caption: str) -> None:
        """Encodes and writes it."""
        write_whole(file, self.encode(caption))

    def discard(self) -> None:
        """Nothing is on the disk."""


Sink: TypeAlias = Mp4 | Gif  # takes an episode's pictures


def board_folder(run: Path) -> Path | None:
    """The run folder that `run` is or lies in, whose TensorBoard events the video joins; None outside of one."""
    return next((folder for folder in (run, run.resolve().parent) if (folder / "config.yaml").is_file()), None)


def _write_events(board: Path, step: int, gif: bytes, size: tuple[int, int], caption: str) -> None:
    """The video at the update it was filmed at, in a file of its own; an earlier evaluation's is removed."""
    from ..runs.events import event_file, write_image

    earlier = list(board.glob(f"events.out.tfevents.*{_SUFFIX}"))
    with event_file(board, _SUFFIX) as writer:
        write_image(writer, TAG, gif, size, step, caption)
    for file in earlier:
        file.unlink()


def _caption(score: Score, index: int, steps: int) -> str:
    return (
        f"{score.env}, {score.agent}, training seed {score.training_seed}, {score.updates} updates, {score.weights} "
        f"weights, rollout {score.acting()}, {score.env_id} from seed {score.seed + index}, "
        f"asked return {asked_words(score.target_return)}, return {score.returns[index]}, {steps} steps"
    )


def _require_ffmpeg() -> None:
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        raise ResourcesError(
            f"MP4 needs ffmpeg ({one_line(error, 100)}): pip install 'aaren-rl[video]', or ask for a .gif"
        ) from error
