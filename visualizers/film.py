"""A GIF of a run: the static twin under a moving playhead, the future pale, and the caption of each frame (Pillow)."""

import io
from pathlib import Path

from visualizers import picture
from visualizers.twins.common import ACCENT, DPI, INK, LEFT, PALE, SHARE, WIDTH, edge, mix

OUT_WIDTH = 900  # px; GitHub shows no wider
FUTURE = 0.8  # how far what has not happened yet is mixed with white
LINE = 26  # px of the large picture, for a caption


def write_gif(path: str | Path, data: dict, fps: float, most_frames: int) -> Path:
    """Writes one frame per iteration, or `most_frames` spread evenly, the last iteration always among them."""
    from PIL import Image

    base, palette = _Base(data), _palette(data)
    frames = []
    for number in _numbers(data, most_frames):
        large = _frame(data, base, number)
        small = large.resize((OUT_WIDTH, round(large.height * OUT_WIDTH / large.width)), Image.LANCZOS)
        frames.append(small.quantize(palette=palette, dither=Image.Dither.NONE))
    first, *more = frames
    durations = [round(1000 / fps)] * len(frames)
    durations[-1] = max(durations[-1], 2000)  # time to read the whole before it begins again
    path = Path(path)
    first.save(path, save_all=True, append_images=more, duration=durations, loop=0, optimize=False)
    return path


def _numbers(data: dict, most: int) -> list[int]:
    count = max(1, *(len(engine["time"]) for engine in data["engines"]))
    wanted = min(count, most)
    return sorted({round(n * (count - 1) / max(1, wanted - 1)) for n in range(wanted)} | {count - 1})


def _palette(data: dict):
    """The colours that pictures are made of, and steps between them and white: one palette for all frames, so that
    nothing flickers."""
    from PIL import Image

    hues = [tone for hue in data["palette"] for tone in (hue, edge(hue))]
    tones = [mix(hue, "#ffffff", share) for hue in hues for share in (0, 0.2, 0.4, 0.53, PALE, 0.8, 0.93)]
    tones += [mix(ACCENT, "#ffffff", share) for share in (0, 0.3, 0.6, FUTURE)]
    tones += [mix(INK, "#ffffff", n / 31) for n in range(32)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for tone in tones for part in bytes.fromhex(tone[1:])])
    return palette


def _image(png: bytes):
    from PIL import Image

    return Image.open(io.BytesIO(png)).convert("RGB")


class _Base:
    """What is the same in all frames: the whole run, without a playhead."""

    def __init__(self, data: dict):
        from matplotlib import get_data_path
        from PIL import ImageFont

        png, self.places, self.inches = picture.render({**data, "iteration": None}, on_card=False)
        self.image = _image(png)
        self.font = ImageFont.truetype(str(Path(get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), 17)
        self.still = all(picture.TWINS[place.view].TIMED for place in self.places)
        self.longest = max(1, *(len(engine["time"]) for engine in data["engines"])) * 1.001

    def box(self, place: picture.Place, first: float = 0, end: float | None = None) -> tuple[int, int, int, int]:
        """Its pixels, from iteration `first` to `end`."""
        left, unit = WIDTH * LEFT * DPI, WIDTH * SHARE * DPI / self.longest
        right = left + unit * (self.longest if end is None else end)
        top, bottom = place.top * DPI, (place.top + place.height) * DPI
        return round(left + unit * first), round(top), round(right), round(bottom)


def _frame(data: dict, base: _Base, number: int):
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (base.image.width, base.image.height + LINE * len(data["engines"])), "white")
    image.paste(base.image)
    draw = ImageDraw.Draw(image)
    now = None if base.still else _image(picture.render({**data, "iteration": number}, on_card=False)[0])
    for place in base.places:
        if not picture.TWINS[place.view].TIMED:
            left, top, right, bottom = base.box(place)
            crop = (0, top, now.width, bottom)
            image.paste(now.crop(crop), crop[:2])
            continue
        here = min(number, len(place.engine["time"]) - 1)
        if here < 0:
            continue
        future = base.box(place, here + 1)
        past = image.crop(future)
        image.paste(Image.blend(past, Image.new("RGB", past.size, "white"), FUTURE), future[:2])
        left, top, right, bottom = base.box(place, here, here + 1)
        draw.rectangle((left, top - 2, max(right, left + 3), bottom + 2), outline=ACCENT, width=2)
    for line, engine in enumerate(data["engines"]):
        here = min(number, len(engine["time"]) - 1)
        said = engine["captions"][here] if here >= 0 else "no iteration ran"
        text = f"{engine['name']}, {said}".encode("utf-8", "replace").decode()
        while draw.textlength(text, base.font) > image.width - 30:
            text = text[:-2].rstrip("…") + "…"
        draw.text((14, base.image.height + LINE * line), text, "#1b1f24", base.font)
    return image
