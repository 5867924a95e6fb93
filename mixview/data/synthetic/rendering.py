"""Drawing of the built-in scenes: numbers from a hash, textures, colors, light and layers, many images at once.

An image is a function of (seed, split, index) alone, bit for bit, on every machine: its numbers come from a 64-bit
integer hash, and its pixels from float32 +, -, ×, ÷, √ and comparisons, which IEEE 754 rounds the same way everywhere.
(The sine of a maths library is not among them; `sine` below is.) Nothing but the outline and the pattern of an object
depends on its class. Scenes are drawn in units of the image: the same index at another size is the same scene.
"""

import hashlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mixview.data.sources.base import Pixels
from mixview.data.synthetic.shapes import SHAPES, Floats, box, length

Ints = npt.NDArray[np.int64]

SPLITS = ("train", "val", "test")
VERSION = 2
"""Changes whenever a pixel changes, so that a cache or a run of an older mixview is told apart."""


def mix(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer: a bijection of 64-bit integers that looks random."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def digest(text: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big"))


class Numbers:
    """The random numbers of N images, each a function of (seed, split, index) and of the name that asks for it.

    Going by name, a new number leaves the others as they were. The splits of a seed interleave one sequence, and
    `mix` is a bijection: no two images of a seed, of whatever split, start from the same state.
    """

    def __init__(self, seed: int, split: str, indices: npt.ArrayLike) -> None:
        position = np.asarray(indices, np.uint64) * np.uint64(len(SPLITS)) + np.uint64(SPLITS.index(split))
        self.state = mix(position + digest(f"scenes/{seed}"))

    def __len__(self) -> int:
        return len(self.state)

    def uniform(self, name: str, low: float = 0.0, high: float = 1.0) -> Floats:
        """[N] in [low, high)"""
        return self.table(name, 1, low, high)[:, 0]

    def table(self, name: str, count: int, low: float = 0.0, high: float = 1.0) -> Floats:
        """[N, count] in [low, high)"""
        columns = mix(np.arange(count, dtype=np.uint64) + digest(name))
        bits = mix(self.state[:, None] + columns) >> np.uint64(40)
        return np.float32(low) + np.float32(high - low) * (bits.astype(np.float32) * np.float32(2**-24))

    def integer(self, name: str, count: int) -> Ints:
        """[N] in 0 … count - 1"""
        return (self.uniform(name) * np.float32(count)).astype(np.int64)

    def chance(self, name: str, probability: float) -> npt.NDArray[np.bool_]:
        return self.uniform(name) < np.float32(probability)


def sine(turns: Floats) -> Floats:
    """About sin(2π turns), to 0.1 %, from operations that round alike everywhere."""
    turns = turns - np.floor(turns + np.float32(0.5))
    wave: Floats = turns * (8 - 16 * np.abs(turns))
    return wave * (np.float32(0.775) + np.float32(0.225) * np.abs(wave))


def direction(turns: Floats) -> tuple[Floats, Floats]:
    """The unit vector at an angle."""
    x, y = sine(turns + np.float32(0.25)), sine(turns)
    norm = length(x, y)
    return x / norm, y / norm


def clamp(value: Floats, low: float = 0, high: float = 1) -> Floats:
    return np.minimum(np.maximum(value, np.float32(low)), np.float32(high))


def smooth(value: Floats) -> Floats:
    """0 below 0, 1 above 1, and an S between."""
    value = clamp(value)
    return value * value * (3 - 2 * value)


def plane(values: Floats) -> Floats:
    """One value per image, [N] -> [N, 1, 1], to meet its pixels."""
    return values[:, None, None]


# Textures: a value in [0, 1] at each pixel, [n, H, W], which says how to mix two colors. `u` and `v` are pixel
# coordinates, turned and scaled so that one unit is about one period; `table` [n, 64] is a random number for each cell.


def cell(table: Floats, column: Ints, row: Ints) -> Floats:
    """The random number of a cell of the plane, repeating every 8 × 8."""
    index = (column & 7) * 8 + (row & 7)
    index += (np.arange(len(table)) * table.shape[1])[:, None, None]
    return table.take(index)


def noise(u: Floats, v: Floats, table: Floats) -> Floats:
    """Value noise: random numbers on a lattice, smoothly between."""
    left, top = np.floor(u), np.floor(v)
    column, row = left.astype(np.int64), top.astype(np.int64)
    across, down = u - left, v - top
    across, down = across * across * (3 - 2 * across), down * down * (3 - 2 * down)
    a, b = cell(table, column, row), cell(table, column + 1, row)
    c, d = cell(table, column, row + 1), cell(table, column + 1, row + 1)
    upper, lower = a + (b - a) * across, c + (d - c) * across
    return upper + (lower - upper) * down


def plain(u: Floats, v: Floats, table: Floats) -> Floats:
    return smooth(np.float32(0.5) + np.float32(0.22) * u)


def stripes(u: Floats, v: Floats, table: Floats) -> Floats:
    return clamp(np.float32(0.5) + 2 * sine(u + np.float32(0.15) * sine(np.float32(0.3) * v)))


def checks(u: Floats, v: Floats, table: Floats) -> Floats:
    half = np.float32(0.5)
    return clamp(half + 4 * sine(u * half) * sine(v * half))


def dots(u: Floats, v: Floats, table: Floats) -> Floats:
    row = np.floor(v)
    u = u + np.float32(0.5) * (row - 2 * np.floor(row * np.float32(0.5)))
    return smooth((np.float32(0.42) - length(u - np.floor(u) - np.float32(0.5), v - row - np.float32(0.5))) * 6)


def clouds(u: Floats, v: Floats, table: Floats) -> Floats:
    coarse, fine = noise(u, v, table), noise(2 * v + 5, 2 * u + 3, table)
    return smooth(np.float32(1.6) * (np.float32(0.65) * coarse + np.float32(0.35) * fine) - np.float32(0.3))


def grain(u: Floats, v: Floats, table: Floats) -> Floats:
    warp = noise(np.float32(0.5) * u, np.float32(0.5) * v, table)
    return np.float32(0.5) + np.float32(0.5) * sine(u + 2 * warp)


def ripples(u: Floats, v: Floats, table: Floats) -> Floats:
    center = 3 * table[:, :2] - np.float32(1.5)
    far = length(u - plane(center[:, 0]), v - plane(center[:, 1]))
    return np.float32(0.5) + np.float32(0.5) * sine(far)


def bricks(u: Floats, v: Floats, table: Floats) -> Floats:
    row = np.floor(v)
    u = np.float32(0.5) * (u + row)
    column = np.floor(u)
    edge = np.minimum(np.minimum(u - column, column + 1 - u) * 2, np.minimum(v - row, row + 1 - v))
    tone = np.float32(0.45) + np.float32(0.55) * cell(table, column.astype(np.int64), row.astype(np.int64))
    return tone * smooth(edge * 7)


def pebbles(u: Floats, v: Floats, table: Floats) -> Floats:
    """Each point takes the tone of the nearest of the jittered cell centers, darker toward the seams."""
    column, row = np.floor(u).astype(np.int64), np.floor(v).astype(np.int64)
    nearest = np.full(u.shape, 9, np.float32)
    second, tone = nearest.copy(), np.zeros_like(nearest)
    for right in (-1, 0, 1):
        for below in (-1, 0, 1):
            here, there = column + right, row + below
            value = cell(table, here, there)
            x = u - here - np.float32(0.2) - np.float32(0.6) * value
            y = v - there - np.float32(0.2) - np.float32(0.6) * cell(table, here + 3, there + 5)
            far = x * x + y * y
            closer = far < nearest
            second = np.where(closer, nearest, np.minimum(second, far))
            tone = np.where(closer, value, tone)
            nearest = np.minimum(nearest, far)
    return (np.float32(0.35) + np.float32(0.65) * tone) * smooth((second - nearest) * 5)


def circles(u: Floats, v: Floats, table: Floats) -> Floats:
    far = length(u - np.floor(u) - np.float32(0.5), v - np.floor(v) - np.float32(0.5))
    return smooth((np.float32(0.16) - np.abs(far - np.float32(0.3))) * 9)


def zigzag(u: Floats, v: Floats, table: Floats) -> Floats:
    half = np.float32(0.5) * v
    return clamp(np.float32(0.5) + 2 * sine(u + 2 * np.abs(half - np.floor(half) - np.float32(0.5))))


def grid(u: Floats, v: Floats, table: Floats) -> Floats:
    line = np.minimum(np.abs(u - np.floor(u) - np.float32(0.5)), np.abs(v - np.floor(v) - np.float32(0.5)))
    return smooth((np.float32(0.2) - line) * 8)


def scales(u: Floats, v: Floats, table: Floats) -> Floats:
    row = np.floor(v)
    u = u + np.float32(0.5) * (row - 2 * np.floor(row * np.float32(0.5)))
    far = length(u - np.floor(u) - np.float32(0.5), v - row)
    return np.where(far < np.float32(0.6), 1 - far, np.float32(0))


def triangles(u: Floats, v: Floats, table: Floats) -> Floats:
    return clamp(np.float32(0.5) + 5 * (u - np.floor(u) + v - np.floor(v) - 1))


def spots(u: Floats, v: Floats, table: Floats) -> Floats:
    return smooth(6 * noise(u * np.float32(1.5), v * np.float32(1.5), table) - np.float32(2.5))


# Clutter, and backgrounds (see Staging), take any of the first; the others are the surfaces of objects.
GROUNDS = (plain, clouds, grain, ripples, bricks, pebbles)
SURFACES = {
    "star": dots,
    "heart": stripes,
    "arrow": checks,
    "crescent": spots,
    "ring": plain,
    "cross": grid,
    "gear": zigzag,
    "leaf": scales,
    "bolt": triangles,
    "mushroom": circles,
    "fish": scales,
    "key": zigzag,
    "house": checks,
    "clover": stripes,
    "drop": spots,
    "hourglass": dots,
}
"""The pattern of each class."""
TEXTURES = (*GROUNDS, *(SURFACES[name] for name in SHAPES))


class Frame(NamedTuple):
    """The position of something: pixel (x, y) of image n is `matrix[n] @ (x - center)` in its own coordinates."""

    center: Floats
    """[n, 2]"""
    matrix: Floats
    """[n, 2, 2]"""
    scale: Floats
    """[n] image units in one of its own."""

    def coordinates(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        x, y = x - plane(self.center[:, 0]), y - plane(self.center[:, 1])
        across = x * plane(self.matrix[:, 0, 0]) + y * plane(self.matrix[:, 0, 1])
        return across, x * plane(self.matrix[:, 1, 0]) + y * plane(self.matrix[:, 1, 1])

    def pick(self, rows: Ints) -> "Frame":
        return Frame(self.center[rows], self.matrix[rows], self.scale[rows])


def place(numbers: Numbers, name: str, center: Floats, scale: Floats, angle: Floats, stretch: float) -> Frame:
    """A frame at a center and scale, turned by an angle and stretched by up to `stretch` in a random direction."""
    cos, sin = direction(angle)
    x, y = direction(numbers.uniform(f"{name} stretch angle"))
    longer = 1 + numbers.uniform(f"{name} stretch", 0, stretch)
    # Longer in the direction (x, y), as much shorter across it. Written out: a BLAS may sum in any order.
    xx, xy, yy = x * x / longer + y * y * longer, x * y / longer - x * y * longer, y * y / longer + x * x * longer
    first = np.stack([cos * xx + sin * xy, cos * xy + sin * yy], -1)
    second = np.stack([cos * xy - sin * xx, cos * yy - sin * xy], -1)
    matrix = np.stack([first, second], 1)
    matrix /= plane(scale)
    return Frame(center, matrix, scale)


def color(hue: Floats, chroma: Floats, lightness: Floats) -> Floats:
    """[3, n] of about that lightness."""
    channels = [sine(hue + np.float32(0.25 + third / 3)) for third in range(3)]
    gray = np.float32(0.3) * channels[0] + np.float32(0.59) * channels[1] + np.float32(0.11) * channels[2]
    return clamp(np.stack([lightness + chroma * (channel - gray) for channel in channels]), 0.02, 0.98)


class Look(NamedTuple):
    """The look of a surface: a texture in two colors."""

    texture: Ints
    first: Floats
    """[3, n]"""
    second: Floats
    """[3, n]"""
    frame: Frame
    table: Floats

    def pick(self, rows: Ints) -> "Look":
        return Look(
            self.texture[rows], self.first[:, rows], self.second[:, rows], self.frame.pick(rows), self.table[rows]
        )

    def paint(self, x: Floats, y: Floats) -> Floats:
        """[3, n, H, W]"""
        u, v = self.frame.coordinates(x, y)
        blend = np.empty_like(u)
        for kind in np.unique(self.texture):
            rows = np.flatnonzero(self.texture == kind)
            blend[rows] = TEXTURES[kind](u[rows], v[rows], self.table[rows])
        first = self.first[:, :, None, None]
        return first + (self.second[:, :, None, None] - first) * blend


def look(
    numbers: Numbers, name: str, texture: Ints, period: Floats, angle: Floats, lightness: Floats, contrast: float
) -> Look:
    """A texture in two related random colors around a lightness, shifted at random."""
    hue = numbers.uniform(f"{name} hue")
    chroma = numbers.uniform(f"{name} chroma", 0.03, 0.35)
    other = hue + numbers.uniform(f"{name} other hue", -0.16, 0.16)
    other_chroma = chroma * numbers.uniform(f"{name} other chroma", 0.5, 1.3)
    spread = numbers.uniform(f"{name} spread", 0.4 * contrast, contrast)
    # Either color may be the lighter: a pattern says nothing about the share of dark and light.
    spread = np.where(numbers.chance(f"{name} inverted", 0.5), -spread, spread)
    return Look(
        texture,
        color(hue, chroma, lightness - spread),
        color(other, other_chroma, lightness + spread),
        place(numbers, f"{name} texture", numbers.table(f"{name} phase", 2, -4, 4), period, angle, 0.3),
        numbers.table(f"{name} cells", 64),
    )


class Light(NamedTuple):
    """One light per image: its direction and its effect. All [n]."""

    x: Floats
    y: Floats
    relief: Floats
    """The amount by which an edge that faces it lights up, and one that turns away darkens."""
    shadow: Floats
    """The length of a shadow, in image units."""
    depth: Floats
    """The darkness of a shadow."""

    def pick(self, rows: Ints) -> "Light":
        return Light(*(values[rows] for values in self))


class Outline(NamedTuple):
    """The outlines of n objects, one of a class or class-neutral, and how their edges are finished."""

    classes: Ints
    """[n] the index of a shape; -1 for what is class-neutral: a pebble, a plank, a bar."""
    sides: Floats
    """[n, 3] half-width, half-height and rounding of what is class-neutral."""
    bevel: Floats
    """[n] the width of the rounded edge, in the object's own units."""
    rim: Floats
    """[n] the amount by which the very edge is lighter (or, negative, darker)."""

    def pick(self, rows: Ints) -> "Outline":
        return Outline(self.classes[rows], self.sides[rows], self.bevel[rows], self.rim[rows])

    def distance(self, u: Floats, v: Floats) -> Floats:
        shapes = tuple(SHAPES.values())
        distance = np.empty_like(u)
        for kind in np.unique(self.classes):
            rows = np.flatnonzero(self.classes == kind)
            if kind >= 0:
                distance[rows] = shapes[kind](u[rows], v[rows])
            else:
                width, height, rounding = (plane(side) for side in self.sides[rows].T)
                distance[rows] = box(u[rows], v[rows], width, height, rounding)
        return distance


class Layer(NamedTuple):
    """Objects to lay on a canvas, at most one per image."""

    rows: Ints
    """[n] the images that have one."""
    frame: Frame
    outline: Outline
    look: Look
    light: Light

    def lay(self, canvas: Floats, x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
        """Draw the objects and their shadows on `canvas` [3, N, H, W], in place; where they are, [n, H, W]."""
        frame, outline, light = self.frame, self.outline, self.light
        pixel = np.float32(2 / x.shape[-1])
        scale = plane(frame.scale)
        below = canvas[:, self.rows]

        fallen = frame.center - np.stack([light.x * light.shadow, light.y * light.shadow], -1)
        distance = outline.distance(*frame._replace(center=fallen).coordinates(x, y)) * scale
        # The penumbra is as wide as the shadow is long.
        penumbra = smooth(np.float32(0.5) - distance / plane(light.shadow + pixel))
        below *= 1 - penumbra * plane(light.depth)

        distance = outline.distance(*frame.coordinates(x, y)) * scale
        surface = self.look.paint(x, y)
        # The rounded edge catches the light where the outline (the gradient of the distance) faces it.
        slope = clamp(1 + distance / (plane(outline.bevel) * scale))
        facing: Floats = difference(distance, 2) * plane(light.x) + difference(distance, 1) * plane(light.y)
        shine(surface, clamp(facing / pixel, -1, 1) * slope * plane(light.relief))
        shine(surface, smooth(1 + distance / (np.float32(0.06) * scale + pixel)) * plane(outline.rim))

        cover = clamp(np.float32(0.5) - distance / pixel)
        canvas[:, self.rows] = below + cover * (surface - below)
        return distance < 0


def difference(values: Floats, axis: int) -> Floats:
    """The change from pixel to pixel, [n, H, W]: central, and one-sided at the border."""
    values = np.moveaxis(values, axis, -1)
    change = np.empty_like(values)
    change[..., 1:-1] = (values[..., 2:] - values[..., :-2]) * np.float32(0.5)
    change[..., 0] = values[..., 1] - values[..., 0]
    change[..., -1] = values[..., -1] - values[..., -2]
    return np.moveaxis(change, -1, axis)


def shine(surface: Floats, amount: Floats) -> None:
    """Lighten toward white where `amount` is positive, darken toward black where it is negative, in place."""
    surface += np.maximum(amount, 0) * (1 - surface) + np.minimum(amount, 0) * surface


def contrasting(numbers: Numbers, name: str, ground: Floats, least: float, most: float) -> Floats:
    """A lightness that differs from the ground's by `least` … `most`, to whichever side there is room, or either."""
    step = numbers.uniform(f"{name} contrast", least, most)
    up = numbers.chance(f"{name} brighter", 0.5)
    up = np.where(ground + step > np.float32(0.9), False, np.where(ground - step < np.float32(0.1), True, up))
    return clamp(np.where(up, ground + step, ground - step), 0.06, 0.94)


def finish(numbers: Numbers, name: str, classes: Ints, sides: Floats) -> Outline:
    """The outline of an object, with a random edge."""
    rim = np.where(numbers.chance(f"{name} rim", 0.4), numbers.uniform(f"{name} rim tone", -0.7, 0.5), 0)
    return Outline(classes, sides, numbers.uniform(f"{name} bevel", 0.08, 0.3), rim.astype(np.float32))


def clutter(numbers: Numbers, name: str, ground: Floats, light: Light, center: Floats, scale: Floats) -> Layer:
    """Something class-neutral at a center: its shape, colors and texture have nothing to do with any class."""
    slim = numbers.chance(f"{name} slim", 0.35)
    width = np.where(slim, numbers.uniform(f"{name} thin", 0.12, 0.2), numbers.uniform(f"{name} wide", 0.45, 0.8))
    height = np.where(slim, np.float32(2.2), numbers.uniform(f"{name} high", 0.45, 0.8))
    rounding = np.minimum(width, height) * numbers.uniform(f"{name} rounding", 0.15, 1.0)
    sides = np.stack([width, height, rounding], -1).astype(np.float32)
    tone = contrasting(numbers, name, ground, 0.1, 0.42)
    kind, angle = numbers.integer(f"{name} texture", len(GROUNDS)), numbers.uniform(f"{name} angle")
    return Layer(
        np.arange(len(numbers)),
        place(numbers, name, center, scale, angle, 0.2),
        finish(numbers, name, np.full(len(numbers), -1), sides),
        look(numbers, name, kind, numbers.uniform(f"{name} period", 0.15, 0.5), angle, tone, 0.1),
        light,
    )


def some(layer: Layer, present: npt.NDArray[np.bool_]) -> Layer:
    """The layer in those images alone."""
    rows = np.flatnonzero(present)
    return Layer(rows, layer.frame.pick(rows), layer.outline.pick(rows), layer.look.pick(rows), layer.light.pick(rows))


def blur(canvas: Floats, amount: Floats) -> Floats:
    """Blur each image of [3, N, H, W] by its own amount (0 … 1), about as much of the picture at any size."""
    weight = amount[:, None, None] * np.float32(0.25)
    step = 1
    while step == 1 or step * 48 <= canvas.shape[-1]:
        for axis in (2, 3):
            padding = [(0, 0)] * 4
            padding[axis] = (step, step)
            padded = np.moveaxis(np.pad(canvas, padding, "edge"), axis, -1)
            around = np.moveaxis(padded[..., : -2 * step] + padded[..., 2 * step :], -1, axis)
            canvas = canvas + weight * (around - 2 * canvas)
        step *= 2
    return canvas


class Staging(NamedTuple):
    """The amount of object in a scene, and of what goes on around it."""

    grounds: int
    """The background's texture is one of this many first `GROUNDS`,"""
    ground_contrast: float
    """with at most this contrast."""
    behind: int
    """At most this many pieces of clutter stand behind the objects,"""
    front: float
    """and with this probability one in front."""
    scale: tuple[float, float]
    """Scale of an object, which covers a quarter of scale² of the image."""
    shift: float
    """The largest shift of an object from its place, either way."""
    tilt: float
    """The largest turn of an object to either side, in turns,"""
    pattern_tilt: float | None
    """and the pattern on it; None if it turns with the object."""
    tone: tuple[float, float]
    """The range of how much lighter or darker than the background an object is,"""
    pattern_contrast: float
    """and at most by how much the two colors of its pattern are lighter and darker than that."""
    period: tuple[float, float]
    """Period of the pattern, in units of the object."""
    blur: float
    """The most that an image is blurred."""


# Instance discrimination learns whatever tells images apart and survives a crop. With one object that has to be the
# object: it is large, most crops show its pattern, the background is calm. Its outline lies at any angle and some way
# off the middle, and its two tones lie on both sides of the background's more often than not, or raw pixels would show
# the class. The pattern stays about upright: at 32 pixels, its kind at every angle takes longer to learn.
SINGLE = Staging(2, 0.05, 0, 0.2, (1.0, 1.4), 0.45, 0.5, 0.04, (0.0, 0.25), 0.35, (0.3, 0.38), 0.4)
MULTIPLE = Staging(len(GROUNDS), 0.12, 2, 0.6, (0.34, 0.54), 0.14, 0.18, None, (0.26, 0.5), 0.18, (0.28, 0.45), 0.8)


def object_layer(numbers: Numbers, slot: int, classes: Ints, staging: Staging, ground: Floats, light: Light) -> Layer:
    """The objects in one slot of the classes [N, K], one per image."""
    count, slots = classes.shape
    name = f"object {slot}"
    scale = numbers.uniform(f"{name} scale", *staging.scale)
    # The key decides the pixels: it stays.
    center = numbers.table(f"{name} centre", 2, -staging.shift, staging.shift)
    if slots > 1:
        quarter = (slot + numbers.integer("first quarter", 4)) % 4
        corner = np.stack([quarter % 2, quarter // 2], -1).astype(np.float32) - np.float32(0.5)
        center = corner * np.float32(0.96) + center
    angle = pattern_angle = numbers.uniform(f"{name} angle", -staging.tilt, staging.tilt)
    if staging.pattern_tilt is not None:
        pattern_angle = numbers.uniform(f"{name} pattern angle", -staging.pattern_tilt, staging.pattern_tilt)
    tone = contrasting(numbers, name, ground, *staging.tone)
    period = scale * numbers.uniform(f"{name} period", *staging.period)
    surface = len(GROUNDS) + classes[:, slot]
    return Layer(
        np.arange(count),
        place(numbers, name, center, scale, angle, 0.2),
        finish(numbers, name, classes[:, slot], np.zeros((count, 3), np.float32)),
        look(numbers, name, surface, period, pattern_angle, tone, staging.pattern_contrast),
        light,
    )


def draw(numbers: Numbers, classes: Ints, size: int) -> tuple[Pixels, npt.NDArray[np.bool_]]:
    """Draw N scenes.

    Args:
        numbers: numbers of the N images.
        classes: [N, K] the class of each of up to K objects, from the back to the front; -1 for none. With K = 1 the
            object is large and about the middle (`SINGLE`); with more, each has a quarter of the image (`MULTIPLE`).
        size: image size in pixels, both ways.

    Returns:
        [N, size, size, 3] the images, and [N, K, size, size] the visible part of each object.
    """
    count, slots = classes.shape
    staging = SINGLE if slots == 1 else MULTIPLE
    middle = ((np.arange(size, dtype=np.float32) + np.float32(0.5)) * np.float32(2 / size)) - 1
    x, y = middle[None, None, :], middle[None, :, None]

    light_x, light_y = direction(numbers.uniform("light angle"))
    shadow, depth = numbers.uniform("shadow", 0.04, 0.16), numbers.uniform("shadow depth", 0.1, 0.6)
    light = Light(light_x, light_y, numbers.uniform("relief", 0.15, 0.75), shadow, depth)

    ground = numbers.uniform("ground", 0.15, 0.85)
    kind, period = numbers.integer("ground texture", staging.grounds), numbers.uniform("ground period", 0.3, 1.1)
    turned = numbers.uniform("ground angle")
    backdrop = look(numbers, "ground", kind, period, turned, ground, staging.ground_contrast)
    canvas = backdrop.paint(*np.broadcast_arrays(x, y))

    for which in range(staging.behind):
        center, scale = numbers.table(f"behind {which}", 2, -1, 1), numbers.uniform(f"behind {which} scale", 0.2, 0.6)
        behind = clutter(numbers, f"behind {which}", ground, light, center, scale)
        some(behind, numbers.chance(f"behind {which} present", 0.7)).lay(canvas, x, y)

    masks = np.zeros((count, slots, size, size), bool)
    frames = []
    for slot in range(slots):
        layer = object_layer(numbers, slot, classes, staging, ground, light)
        frames.append(layer.frame)
        layer = some(layer, classes[:, slot] >= 0)
        visible = layer.lay(canvas, x, y)
        masks[layer.rows, :slot] &= ~visible[:, None]
        masks[layer.rows, slot] = visible

    # What stands in front reaches over the rim of the first object, not over its middle.
    outwards = np.stack(direction(numbers.uniform("front angle")), -1)
    away = frames[0].scale * numbers.uniform("front distance", 0.75, 1.05)
    front = clutter(
        numbers,
        "front",
        ground,
        light,
        frames[0].center + outwards * away[:, None],
        frames[0].scale * numbers.uniform("front scale", 0.28, 0.45),
    )
    front = some(front, numbers.chance("front present", staging.front))
    masks[front.rows] &= ~front.lay(canvas, x, y)[:, None]

    slant = numbers.uniform("slant", 0, 0.45)
    shine(canvas, (x * plane(light.x) + y * plane(light.y)) * plane(slant))
    canvas = blur(canvas, np.maximum(numbers.uniform("blur", -0.7, staging.blur), 0))
    pixels = (clamp(canvas) * 255 + np.float32(0.5)).astype(np.uint8)
    return np.ascontiguousarray(np.moveaxis(pixels, 0, -1)), masks
