"""The shapes of the embedded scenes, as signed distances: negative inside, positive outside, in units of the shape.

Every shape has the same area, so that the share of an image that an object covers says nothing about its class. The
arithmetic is +, -, ×, ÷, √, min and max on float32, which IEEE 754 rounds the same way everywhere: no library
rasterizer, no sine, and so the same shapes on every machine.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Shape = Callable[[Floats, Floats], Floats]
"""(u to the right, v downwards) -> the signed distance to the outline."""


def length(u: Floats, v: Floats) -> Floats:
    return np.sqrt(u * u + v * v)


def disc(u: Floats, v: Floats, radius: float) -> Floats:
    return length(u, v) - np.float32(radius)


def box(u: Floats, v: Floats, width: Floats | float, height: Floats | float, rounding: Floats | float = 0.0) -> Floats:
    """A rectangle about the origin of half-sides `width` and `height`, its corners rounded."""
    corner: Floats = np.asarray(rounding, np.float32)
    across: Floats = np.abs(u) - (np.asarray(width, np.float32) - corner)
    down: Floats = np.abs(v) - (np.asarray(height, np.float32) - corner)
    outside = length(np.maximum(across, 0), np.maximum(down, 0))
    return outside + np.minimum(np.maximum(across, down), 0) - corner


def polygon(u: Floats, v: Floats, corners: Sequence[tuple[float, float]]) -> Floats:
    """The exact distance to a polygon, convex or not."""
    nearest = np.full(u.shape, np.inf, np.float32)
    inside = np.zeros(u.shape, bool)
    for (ax, ay), (bx, by) in zip(corners, [*corners[1:], corners[0]], strict=True):
        ex, ey = np.float32(bx - ax), np.float32(by - ay)
        wx, wy = u - np.float32(ax), v - np.float32(ay)
        along = np.clip((wx * ex + wy * ey) * np.float32(1 / (ex * ex + ey * ey)), 0, 1)
        dx, dy = wx - ex * along, wy - ey * along
        np.minimum(nearest, dx * dx + dy * dy, out=nearest)
        crosses = (v >= np.float32(ay)) != (v >= np.float32(by))
        inside ^= crosses & ((ex * wy > ey * wx) == (by > ay))
    distance = np.sqrt(nearest)
    return np.where(inside, -distance, distance)


def star(u: Floats, v: Floats) -> Floats:
    corners = []
    for corner in range(10):
        angle, radius = math.pi * corner / 5, 0.44 if corner % 2 else 1.0
        # Rounded, so that the last bit of somebody's sine does not move a corner.
        corners.append((round(radius * math.sin(angle), 4), round(-radius * math.cos(angle), 4)))
    return polygon(u, v, corners)


def heart(u: Floats, v: Floats) -> Floats:
    v = v + np.float32(0.07)
    lobes = disc(np.abs(u) - np.float32(0.44), v + np.float32(0.32), 0.48)
    corners = [(0, 0.95), (0.807, -0.012), (0.44, -0.32), (0, -0.45), (-0.44, -0.32), (-0.807, -0.012)]
    return np.minimum(lobes, polygon(u, v, corners))


def arrow(u: Floats, v: Floats) -> Floats:
    corners = [(0, -1), (0.72, -0.2), (0.26, -0.2), (0.26, 0.95), (-0.26, 0.95), (-0.26, -0.2), (-0.72, -0.2)]
    return polygon(u, v, corners)


def crescent(u: Floats, v: Floats) -> Floats:
    u = u - np.float32(0.17)
    return np.maximum(disc(u, v, 0.9), -disc(u - np.float32(0.42), v, 0.72))


def ring(u: Floats, v: Floats) -> Floats:
    return np.abs(disc(u, v, 0.68)) - np.float32(0.19)


def cross(u: Floats, v: Floats) -> Floats:
    return np.minimum(box(u, v, 0.9, 0.27), box(u, v, 0.27, 0.9))


def gear(u: Floats, v: Floats) -> Floats:
    x, y = np.abs(u), np.abs(v)
    x, y = np.maximum(x, y), np.minimum(x, y)
    # Fold the 45° between two teeth in half: every tooth becomes the one on the x axis.
    beyond = np.maximum(y * np.float32(0.92388) - x * np.float32(0.382683), 0)
    x, y = x + beyond * np.float32(0.765367), y - beyond * np.float32(1.847759)
    tooth = box(x - np.float32(0.78), y, 0.22, 0.15)
    return np.maximum(np.minimum(disc(u, v, 0.7), tooth), -disc(u, v, 0.27))


def leaf(u: Floats, v: Floats) -> Floats:
    v = v + np.float32(0.14)
    blade = np.maximum(disc(u - np.float32(0.64), v, 1.08), disc(u + np.float32(0.64), v, 1.08))
    return np.minimum(blade, box(u, v - np.float32(0.95), 0.07, 0.3))


def bolt(u: Floats, v: Floats) -> Floats:
    return polygon(u, v, [(0.5, -1), (-0.75, 0.2), (-0.06, 0.2), (-0.45, 1), (0.78, -0.32), (0.12, -0.32)])


def mushroom(u: Floats, v: Floats) -> Floats:
    v = v - np.float32(0.12)
    cap = np.maximum(disc(u, v, 0.85), v)
    return np.minimum(cap, box(u, v - np.float32(0.3), 0.27, 0.4, 0.12))


def fish(u: Floats, v: Floats) -> Floats:
    u = u + np.float32(0.2)
    body = np.maximum(disc(u, v - np.float32(0.45), 0.9), disc(u, v + np.float32(0.45), 0.9))
    tail = polygon(u, v, [(0.5, 0), (1.15, -0.5), (0.98, 0), (1.15, 0.5)])
    return np.minimum(body, tail)


def key(u: Floats, v: Floats) -> Floats:
    bow = np.abs(disc(u + np.float32(0.6), v, 0.34)) - np.float32(0.13)
    stem = box(u - np.float32(0.42), v, 0.64, 0.11)
    teeth = np.minimum(
        box(u - np.float32(0.56), v - np.float32(0.2), 0.09, 0.26),
        box(u - np.float32(0.93), v - np.float32(0.2), 0.12, 0.3),
    )
    return np.minimum(bow, np.minimum(stem, teeth))


def house(u: Floats, v: Floats) -> Floats:
    corners = [(0, -0.95), (0.9, -0.1), (0.62, -0.1), (0.62, 0.8), (-0.62, 0.8), (-0.62, -0.1), (-0.9, -0.1)]
    walls = polygon(u, v, corners)
    return np.maximum(walls, -box(u, v - np.float32(0.6), 0.19, 0.36))


def clover(u: Floats, v: Floats) -> Floats:
    sides = disc(np.abs(u) - np.float32(0.42), v - np.float32(0.08), 0.38)
    leaves = np.minimum(sides, disc(u, v + np.float32(0.5), 0.38))
    stem = polygon(u, v, [(0.15, -0.2), (0.09, 0.1), (0.26, 0.92), (-0.26, 0.92), (-0.09, 0.1), (-0.15, -0.2)])
    return np.minimum(leaves, stem)


def drop(u: Floats, v: Floats) -> Floats:
    tip = polygon(u, v, [(0, -1), (0.5, 0.02), (-0.5, 0.02)])
    return np.minimum(disc(u, v - np.float32(0.3), 0.58), tip)


def hourglass(u: Floats, v: Floats) -> Floats:
    return polygon(
        np.abs(u), np.abs(v), [(-0.7, -0.9), (0.12, -0.9), (0.12, 0.04), (0.64, 0.78), (0.64, 0.9), (-0.7, 0.9)]
    )


AREA = 1.0
"""The area of every shape, in its own units squared."""

# Drawn at their own scale, the shapes cover this much (a test measures it).
_DRAWN: dict[str, tuple[Shape, float]] = {
    "star": (star, 1.2932),
    "heart": (heart, 2.0348),
    "arrow": (arrow, 1.1740),
    "crescent": (crescent, 1.1961),
    "ring": (ring, 1.6236),
    "cross": (cross, 1.6524),
    "gear": (gear, 2.0455),
    "leaf": (leaf, 1.1282),
    "bolt": (bolt, 0.7826),
    "mushroom": (mushroom, 1.5066),
    "fish": (fish, 1.1952),
    "key": (key, 0.9747),
    "house": (house, 1.6682),
    "clover": (clover, 1.6397),
    "drop": (drop, 1.3507),
    "hourglass": (hourglass, 1.4512),
}


def _equal_area(shape: Shape, drawn: float) -> Shape:
    scale = np.float32(math.sqrt(drawn / AREA))
    return lambda u, v: shape(u * scale, v * scale) / scale


SHAPES: dict[str, Shape] = {name: _equal_area(shape, drawn) for name, (shape, drawn) in _DRAWN.items()}
"""The classes, in order; the first ten are the default."""
