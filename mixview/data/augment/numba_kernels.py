"""Native code for views, compiled by Numba: crop, color, blur and normalization in as few sweeps as there can be.

`numba_backend` calls this and is what to import. A view is made in bands of rows that stay in the nearest cache:
each band is resized, then every operation passes over it while it is there, then it is written. Only a contrast, which
needs the mean of all that came before it, and a blur, which needs its neighbors, start a new sweep.

What makes this fast, and is easily lost: rows are contiguous one-dimensional slices, all constants are float32,
conditions are selects rather than branches, and nothing runs in parallel (worker processes do that).
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from mixview.data.augment.params import COLUMNS, CROP_ATTEMPTS, LIMITS, UNIFORM_COLUMNS, UNIFORMS
from mixview.data.augment.policies import MAX_OPERATIONS

# Operations of a program, and the steps that they come from (`numba_backend` numbers steps the same way).
BRIGHTNESS, CONTRAST, SATURATION, HUE, GRAY, BLUR, SOLARIZE = range(7)
STEP_JITTER, STEP_GRAY, STEP_BLUR, STEP_SOLARIZE = range(4)

# Columns of packed parameters; the four factors of a jitter follow one another.
TOP, LEFT, HEIGHT, WIDTH, FLIP = (COLUMNS[name] for name in ("top", "left", "height", "width", "flip"))
JITTER, FACTORS, ORDER, SIGMA = (COLUMNS[name] for name in ("jitter", "brightness", "order", "sigma"))
IS_GRAY, IS_SOLARIZE, OPERATIONS = (COLUMNS[name] for name in ("grayscale", "solarize", "operations"))

# Columns of limits; those of the factors follow one another, low and high.
SCALE, RATIO, FACTOR_LIMITS, SIGMA_LIMITS = (
    LIMITS[name] for name in ("scale_low", "ratio_low", "brightness_low", "sigma_low")
)
P_FLIP, P_JITTER, P_GRAY, P_BLUR, P_SOLARIZE = (
    LIMITS[name] for name in ("flip", "jitter", "grayscale", "blur", "solarize")
)

# Columns of the uniform numbers that parameters are made of.
U_TOP, U_LEFT, U_FLIP, U_JITTER = (UNIFORM_COLUMNS[name] for name in ("top", "left", "flip", "jitter"))
U_FACTORS, U_ORDER, U_GRAY = (UNIFORM_COLUMNS[name] for name in ("factors", "order", "grayscale"))
U_BLUR, U_SIGMA, U_SOLARIZE = (UNIFORM_COLUMNS[name] for name in ("blur", "sigma", "solarize"))

F = np.float32
ZERO, HALF, ONE, TWO, THREE, FOUR, SIX = F(0), F(0.5), F(1), F(2), F(3), F(4), F(6)
RED, GREEN, BLUE = F(0.2989), F(0.587), F(0.114)  # torchvision's
BAND = 1024  # pixels: three channels of it are 12 kB
ROWS = 4  # that are made at once of as many lines
REACH = 4.5  # in sigmas; what lies beyond weighs less than a hundred-thousandth

# No wrappers for what only native code calls: they are more to compile.
inner: Any = njit(fastmath=True, error_model="numpy", nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
exact: Any = njit(error_model="numpy", nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


# Resizing: weights as torch's antialiased ones, rows first (contiguous), then columns.


@exact
def filter_value(x: float, cubic: bool) -> float:
    x = abs(x)
    if not cubic:
        return max(0.0, 1.0 - x)
    if x < 1.0:
        return (1.5 * x - 2.5) * x * x + 1.0
    if x < 2.0:
        return ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return 0.0


@exact
def fill_weights(size, out, cubic, flip, factor, starts, weights):
    """The pixels of `size` that make each of `out`, and their weights; `factor` times as much, or mirrored.

    Returns the largest number of pixels that make one. The weights of the others are filled up with zeros, so that all
    loops over them are as long.
    """
    scale = size / out
    stretch = max(scale, 1.0)
    inverse = 1.0 / stretch
    support = (2.0 if cubic else 1.0) * stretch
    most = 0
    for i in range(out):
        place = out - 1 - i if flip else i
        center = scale * (i + 0.5)
        low = max(int(center - support + 0.5), 0)
        high = min(int(center + support + 0.5), size)
        total = 0.0
        for j in range(low, high):
            value = filter_value((j - center + 0.5) * inverse, cubic)
            weights[place, j - low] = F(value)
            total += value
        total = factor / total
        for k in range(high - low):
            weights[place, k] *= F(total)
        for k in range(high - low, weights.shape[1]):
            weights[place, k] = ZERO
        starts[place] = low
        most = max(most, high - low)
    return most


@inner
def mix_one(out, a, wa):
    for i in range(out.size):
        out[i] = wa * F(a[i])


@inner
def mix_two(out, a, b, wa, wb):
    for i in range(out.size):
        out[i] = wa * F(a[i]) + wb * F(b[i])


@inner
def mix_three(out, a, b, c, wa, wb, wc):
    for i in range(out.size):
        out[i] = wa * F(a[i]) + wb * F(b[i]) + wc * F(c[i])


@inner
def mix_four(out, a, b, c, d, wa, wb, wc, wd):
    for i in range(out.size):
        out[i] = wa * F(a[i]) + wb * F(b[i]) + wc * F(c[i]) + wd * F(d[i])


@inner
def add_two(out, a, b, wa, wb):
    for i in range(out.size):
        out[i] += wa * F(a[i]) + wb * F(b[i])


@inner
def add_one(out, a, wa):
    for i in range(out.size):
        out[i] += wa * F(a[i])


@inner
def mix_rows(out, image, top, count, weights, low, high):
    """out[i] = sum over k of weights[k] image[top + k, low + i]"""
    if count == 1:
        mix_one(out, image[top, low:high], weights[0])
        return
    if count == 2:
        mix_two(out, image[top, low:high], image[top + 1, low:high], weights[0], weights[1])
        return
    if count == 3:
        mix_three(
            out,
            image[top, low:high],
            image[top + 1, low:high],
            image[top + 2, low:high],
            weights[0],
            weights[1],
            weights[2],
        )
        return
    mix_four(
        out,
        image[top, low:high],
        image[top + 1, low:high],
        image[top + 2, low:high],
        image[top + 3, low:high],
        weights[0],
        weights[1],
        weights[2],
        weights[3],
    )
    k = 4
    while k + 1 < count:
        add_two(out, image[top + k, low:high], image[top + k + 1, low:high], weights[k], weights[k + 1])
        k += 2
    if k < count:
        add_one(out, image[top + k, low:high], weights[k])


@intrinsic
def mix_pixels(typing, lines, length, at, weights, first, count):
    """Sum over k of weights[first + k] line[at + 3 k …] for each of `ROWS` lines, red, green and blue at once.

    A pixel is loaded as a vector of four, its three channels and one too many: in scalars, three times as many loads
    would be all that there is time for. A weight is loaded once for all the lines.

    Args:
        lines: [ROWS length] which go on with at least one number after the last pixel.
        length: the length of a line, in numbers.
        at: the first number of the first pixel in its line.
        weights: [...] the weights of all pixels.
        first: the first weight of this one.
        count: the number of pixels; a constant is unrolled.
    """
    signature = types.UniTuple(types.float32, 3 * ROWS)(lines, length, at, weights, first, count)

    def generate(context, builder, signature, arguments):
        lines, length, at, weights, first, count = arguments
        pixels = context.make_array(signature.args[0])(context, builder, lines).data
        taps = context.make_array(signature.args[3])(context, builder, weights).data
        index, vector = ir.IntType(32), ir.VectorType(ir.FloatType(), 4)
        nothing, same = ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(index, 4), [0] * 4)
        totals = [cgutils.alloca_once_value(builder, ir.Constant(vector, None)) for _ in range(ROWS)]
        with cgutils.for_range(builder, count, intp=at.type) as loop:
            tap = builder.load(builder.gep(taps, [builder.add(first, loop.index)]))
            tap = builder.shuffle_vector(builder.insert_element(nothing, tap, index(0)), nothing, same)
            place = builder.add(at, builder.mul(loop.index, at.type(3)))
            for total in totals:
                pixel = builder.load(builder.bitcast(builder.gep(pixels, [place]), vector.as_pointer()))
                pixel.align = 4
                product = builder.fmul(pixel, tap, flags=("fast",))
                builder.store(builder.fadd(builder.load(total), product, flags=("fast",)), total)
                place = builder.add(place, length)
        sums = [builder.load(total) for total in totals]
        channels = [builder.extract_element(each, index(c)) for each in sums for c in range(3)]
        return context.make_tuple(builder, signature.return_type, channels)

    return signature, generate


def mixing_columns(constant: int) -> Any:
    """Make `ROWS` rows of the three channels, of `constant` (or, of 0, `count`) pixels of a line [W 3] for each."""

    @inner
    def mix(red, green, blue, lines, length, starts, count, weights, reach):
        taps = constant or count
        size = np.uintp(starts.size)
        for i in range(starts.size):
            mixed = mix_pixels(lines, length, 3 * starts[i], weights, reach * i, taps)
            at = np.uintp(i)
            red[at], green[at], blue[at] = mixed[0], mixed[1], mixed[2]
            at += size
            red[at], green[at], blue[at] = mixed[3], mixed[4], mixed[5]
            at += size
            red[at], green[at], blue[at] = mixed[6], mixed[7], mixed[8]
            at += size
            red[at], green[at], blue[at] = mixed[9], mixed[10], mixed[11]

    return mix


mix_columns_2, mix_columns_3, mix_columns_4 = mixing_columns(2), mixing_columns(3), mixing_columns(4)
mix_columns_6, mix_columns_any = mixing_columns(6), mixing_columns(0)


@inner
def mix_columns_rgb(red, green, blue, lines, length, starts, count, weights, reach):
    if count <= 2:
        mix_columns_2(red, green, blue, lines, length, starts, count, weights, reach)
    elif count == 3:
        mix_columns_3(red, green, blue, lines, length, starts, count, weights, reach)
    elif count == 4:
        mix_columns_4(red, green, blue, lines, length, starts, count, weights, reach)
    elif count <= 6:
        mix_columns_6(red, green, blue, lines, length, starts, count, weights, reach)
    else:
        mix_columns_any(red, green, blue, lines, length, starts, count, weights, reach)


@inner
def mix_columns(out, line, channel, channels, starts, count, weights):
    for x in range(out.size):
        at = np.uintp(starts[x] * channels + channel)
        total = ZERO
        for k in range(count):
            total += weights[x, k] * line[at]
            at += np.uintp(channels)
        out[x] = total


@inner
def resize_rows(planes, image, top, low, width, height, first, until, starts, count_y, down, count_x, across, lines):
    """Rows `first` to `until` of every channel; `low` and `width` count numbers, not pixels."""
    channels, size = planes.shape[0], starts.shape[1]
    length, weights = lines.size // ROWS, across.reshape(across.size)
    for y in range(first, until, ROWS):
        rows = min(ROWS, until - y)
        for row in range(rows):
            begin, start = row * length, starts[0, y + row]
            # At the lower end there are fewer rows than `count_y`, and zeros for those that there are not.
            count = min(count_y, height - start)
            mix_rows(lines[begin : begin + width], image, top + start, count, down[y + row], low, low + width)
        begin, end = y * size, (y + rows) * size
        if channels == 3 and rows == ROWS:
            red, green, blue = planes[0, begin:end], planes[1, begin:end], planes[2, begin:end]
            mix_columns_rgb(red, green, blue, lines, length, starts[1], count_x, weights, across.shape[1])
        else:
            for row in range(rows):
                line = lines[row * length : (row + 1) * length]
                at = begin + row * size
                for c in range(channels):
                    mix_columns(planes[c, at : at + size], line, c, channels, starts[1], count_x, across)


# Operations on bands: contiguous slices, one per channel.


@inner
def clip(band):
    for i in range(band.size):
        band[i] = min(max(band[i], ZERO), ONE)


@inner
def scale_shift(band, scale, shift):
    """Brightness and contrast: clipped to [0, 1]."""
    for i in range(band.size):
        band[i] = min(max(band[i] * scale + shift, ZERO), ONE)


@inner
def saturate(red, green, blue, factor):
    rest = ONE - factor
    for i in range(red.size):
        r, g, b = red[i], green[i], blue[i]
        gray = (RED * r + GREEN * g + BLUE * b) * rest
        r = r * factor + gray
        g = g * factor + gray
        b = b * factor + gray
        r = r if r > ZERO else ZERO
        g = g if g > ZERO else ZERO
        b = b if b > ZERO else ZERO
        red[i] = r if r < ONE else ONE
        green[i] = g if g < ONE else ONE
        blue[i] = b if b < ONE else ONE


@inner
def turn_hue(red, green, blue, turns):
    """HSV and back in one formula: a wave of the hue between the least and the most, one phase per channel.

    The hue is kept times the spread of the channels, so that nothing has to be divided by it.
    """
    shift = SIX * turns
    shift = shift if shift >= ZERO else shift + SIX
    for i in range(red.size):
        r, g, b = red[i], green[i], blue[i]
        high = r if r > g else g
        high = high if high > b else b
        low = r if r < g else g
        low = low if low < b else b
        spread = high - low
        hue = b - r + TWO * spread if high == g else r - g + FOUR * spread
        hue = g - b if high == r else hue
        hue += shift * spread  # within [-1, 11] spreads
        circle = SIX * spread
        hue = hue if hue < circle else hue - circle
        hue = hue if hue >= ZERO else hue + circle
        value = low - spread + abs(hue - THREE * spread)
        value = value if value > low else low
        red[i] = value if value < high else high
        value = high + spread - abs(hue - TWO * spread)
        value = value if value > low else low
        green[i] = value if value < high else high
        value = high + spread - abs(hue - FOUR * spread)
        value = value if value > low else low
        blue[i] = value if value < high else high


@inner
def gray_out(red, green, blue):
    for i in range(red.size):
        gray = RED * red[i] + GREEN * green[i] + BLUE * blue[i]
        red[i] = gray
        green[i] = gray
        blue[i] = gray


@inner
def gray_sum(red, green, blue):
    total = ZERO
    for i in range(red.size):
        total += RED * red[i] + GREEN * green[i] + BLUE * blue[i]
    return total


@inner
def plain_sum(band):
    total = ZERO
    for i in range(band.size):
        total += band[i]
    return total


@inner
def solarize(band):
    for i in range(band.size):
        value = band[i]
        band[i] = value if value < HALF else ONE - value


@inner
def write(out, band, scale, shift):
    for i in range(band.size):
        out[i] = band[i] * scale + shift


@inner
def write_apart(out, band, scale, shift, step, offset):
    at = np.uintp(offset)
    for i in range(band.size):
        out[at] = band[i] * scale + shift
        at += np.uintp(step)


# Blur: across the rows of a padded plane, then along them.


@exact
def fill_taps(sigma, radius, taps):
    """Half of a Gaussian of 2 radius + 1 taps whose sum is 1; returns how far it is worth reaching."""
    total = 0.0
    for j in range(-radius, radius + 1):
        total += math.exp(-0.5 * (j / sigma) ** 2)
    for j in range(radius + 1):
        taps[j] = F(math.exp(-0.5 * (j / sigma) ** 2) / total)
    return min(radius, math.ceil(REACH * sigma))


@exact
def reflect(y, size):
    y = abs(y)
    return y if y < size else 2 * size - 2 - y


@inner
def pair_first(out, middle, a, b, w0, w1):
    for i in range(out.size):
        out[i] = w0 * middle[i] + w1 * (a[i] + b[i])


@inner
def pair_add(out, a, b, w):
    for i in range(out.size):
        out[i] += w * (a[i] + b[i])


@inner
def pairs_add(out, a, b, c, d, e, f, w1, w2, w3):
    for i in range(out.size):
        out[i] += w1 * (a[i] + b[i]) + w2 * (c[i] + d[i]) + w3 * (e[i] + f[i])


@inner
def copy_padded(padded, plane, size, reach):
    """A plane with `reach` reflected pixels on every side, rows one after the other."""
    stride = size + 2 * reach
    for y in range(-reach, size + reach):
        start = (y + reach) * stride
        source = reflect(y, size) * size
        row = padded[start : start + stride]
        mix_one(row[reach : reach + size], plane[source : source + size], ONE)
        for j in range(1, reach + 1):
            row[reach - j] = row[reach + j]
            row[reach + size - 1 + j] = row[reach + size - 1 - j]


@inner
def spread_taps(out, line, middle, step, taps, reach):
    """out[i] = sum over j of taps[|j|] line[middle + i + j step]: along rows, or across them, of a padded plane."""
    n = out.size
    if reach == 0:
        mix_one(out, line[middle : middle + n], taps[0])
        return
    a, b = middle - step, middle + step
    pair_first(out, line[middle : middle + n], line[a : a + n], line[b : b + n], taps[0], taps[1])
    j = 2
    while j + 2 <= reach:
        a, b = middle - j * step, middle + j * step
        c, d = a - step, b + step
        e, f = c - step, d + step
        pairs_add(
            out,
            line[a : a + n],
            line[b : b + n],
            line[c : c + n],
            line[d : d + n],
            line[e : e + n],
            line[f : f + n],
            taps[j],
            taps[j + 1],
            taps[j + 2],
        )
        j += 3
    while j <= reach:
        a, b = middle - j * step, middle + j * step
        pair_add(out, line[a : a + n], line[b : b + n], taps[j])
        j += 1


@inner
def blur_plane(out, plane, size, taps, reach, padded, down, across):
    """A blurred plane, in bands of rows that are one long line: ends included, which are then left out."""
    stride = size + 2 * reach
    copy_padded(padded, plane, size, reach)
    rows = max(1, down.size // stride)
    for first in range(0, size, rows):
        count = min(rows, size - first)
        n = count * stride
        spread_taps(down[:n], padded, (first + reach) * stride, stride, taps, reach)
        spread_taps(across[: n - 2 * reach], down[:n], reach, 1, taps, reach)
        for y in range(count):
            at = (first + y) * size
            mix_one(out[at : at + size], across[y * stride : y * stride + size], ONE)


# A view: its parameters become a program, which runs in sweeps.


@exact
def build_program(params, steps, active, radius, channels, codes, values):
    """The operations that parameters stand for, in order, into `codes` and `values`; returns how many."""
    count = 0
    for step in steps:
        if step == STEP_JITTER and params[JITTER] != 0:
            for place in range(4):
                which = int(params[ORDER + place])
                if active[which] and (which <= CONTRAST or channels == 3):
                    codes[count] = which
                    values[count] = F(params[FACTORS + which])
                    count += 1
        elif step == STEP_GRAY and params[IS_GRAY] != 0 and channels == 3:
            codes[count] = GRAY
            count += 1
        elif step == STEP_BLUR and params[SIGMA] > 0 and radius >= 0:
            codes[count] = BLUR
            values[count] = F(params[SIGMA])
            count += 1
        elif step == STEP_SOLARIZE and params[IS_SOLARIZE] != 0:
            codes[count] = SOLARIZE
            count += 1
    return count


@inner
def operate(code, value, mean, planes, low, high):
    """One operation on one band of every channel."""
    channels = planes.shape[0]
    if code == SATURATION:
        saturate(planes[0, low:high], planes[1, low:high], planes[2, low:high], value)
    elif code == HUE:
        turn_hue(planes[0, low:high], planes[1, low:high], planes[2, low:high], value)
    elif code == GRAY:
        gray_out(planes[0, low:high], planes[1, low:high], planes[2, low:high])
    else:
        for c in range(channels):
            if code == BRIGHTNESS:
                scale_shift(planes[c, low:high], value, ZERO)
            elif code == CONTRAST:
                scale_shift(planes[c, low:high], value, (ONE - value) * mean)
            elif code == SOLARIZE:
                solarize(planes[c, low:high])


CROP, KEPT = 0, 1


@inner
def run(image, params, cubic, cropped, steps, active, radius, scales, shifts, last, work, out):
    """One view. `work` is two sets of planes; without `cropped`, the first already holds the view so far."""
    channels, pixels = work.shape[1], work.shape[2]
    size = round(math.sqrt(pixels))
    codes, values = np.empty(8, np.int64), np.empty(8, np.float32)
    length = build_program(params, steps, active, radius, channels, codes, values)
    # Planes that end up where they are to be are not copied there: the last sweep, which follows the blur if there is
    # one, is over `out` itself.
    blurred = False
    for place in range(length):
        blurred = blurred or codes[place] == BLUR
    front, back = work[0], work[1]
    if not last and cropped and not blurred:
        front = out
    if not last and blurred:
        back = out
    top, left, height, width = int(params[TOP]), int(params[LEFT]), int(params[HEIGHT]), int(params[WIDTH])
    reach_y = max(4, 2 * (math.ceil((2 if cubic else 1) * max(height / size, 1.0)) + 1) if cropped else 1)
    reach_x = max(4, 2 * (math.ceil((2 if cubic else 1) * max(width / size, 1.0)) + 1) if cropped else 1)
    starts = np.empty((2, size), np.int64)
    down, across = np.empty((size, reach_y), np.float32), np.empty((size, reach_x), np.float32)
    taps = np.empty(max(radius, 0) + 1, np.float32)
    lines = np.zeros(ROWS * (width + reach_x) * channels if cropped else 1, np.float32)  # zero beyond the pixels
    count_y, count_x = 0, 0
    if cropped:
        count_y = fill_weights(height, size, cubic, False, 1 / 255, starts[0], down)
        count_x = fill_weights(width, size, cubic, params[FLIP] != 0, 1.0, starts[1], across)
    rows = max(1, BAND // size // ROWS) * ROWS
    kind = CROP if cropped else KEPT
    known, mean, reach = False, ZERO, 0
    at = 0
    while True:
        end = at
        while end < length and codes[end] != BLUR and (codes[end] != CONTRAST or (end == at and known)):
            end += 1
        averaged = end < length and codes[end] == CONTRAST
        total = 0.0
        for first in range(0, size, rows):
            until = min(first + rows, size)
            low, high = first * size, until * size
            if kind == CROP:
                resize_rows(
                    front,
                    image,
                    top,
                    left * channels,
                    width * channels,
                    height,
                    first,
                    until,
                    starts,
                    count_y,
                    down,
                    count_x,
                    across,
                    lines,
                )
                if cubic:  # it overshoots
                    for c in range(channels):
                        clip(front[c, low:high])
            for place in range(at, end):
                operate(codes[place], values[place], mean, front, low, high)
            if averaged:
                if channels == 3:
                    total += gray_sum(front[0, low:high], front[1, low:high], front[2, low:high])
                else:
                    for c in range(channels):
                        total += plain_sum(front[c, low:high])
            if end == length:
                for c in range(channels):
                    if last:
                        flat = out.reshape(out.size)[low * channels : high * channels]
                        write_apart(flat, front[c, low:high], scales[c], shifts[c], channels, c)
                    else:
                        write(out[c, low:high], front[c, low:high], scales[c], shifts[c])
        if end == length:
            return
        at = end
        known = averaged
        if averaged:
            mean = F(total / (pixels * (1 if channels == 3 else channels)))
            kind = KEPT
        else:
            reach = fill_taps(values[end], radius, taps)
            kind = KEPT
            at = end + 1
            front, back = back, front
            stride = size + 2 * reach
            padded, band = np.empty(stride * stride, np.float32), max(1, 2 * BAND // stride) * stride
            below, along = np.empty(band, np.float32), np.empty(band, np.float32)
            for c in range(channels):
                blur_plane(front[c], back[c], size, taps, reach, padded, below, along)


SIGNATURE = (
    "void({}[:,:,::1], float64[:,::1], boolean, boolean, int64[::1], boolean[::1], int64,"
    " float32[::1], float32[::1], boolean, float32[:,:,::1], float32[:,:,::1])"
)
"""Signature for pixels of 8 bits, or floats from 0 to 255."""


def run_batch(images, params, cubic, cropped, steps, active, radius, scales, shifts, last, work, out):
    """A view of each image.

    Args:
        images: [N, H, W C] (or anything, without `cropped`).
        params: [N, PACKED] packed parameters.
        cubic: interpolation by cubics rather than lines.
        cropped: True if views begin with the images, False if they go on from what is in `work`.
        steps: the steps to run, in order.
        active: [4] True for each of brightness, contrast, saturation and hue that happens at all.
        radius: the radius of the blur's kernel, -1 for none.
        scales: [C] scales of the output, which is scale x + shift.
        shifts: [C]
        last: channels last.
        work: [2, C, S S] scratch.
        out: [N, C, S S], whichever its order.
    """
    for n in range(params.shape[0]):
        image = images[n if cropped else 0]
        run(image, params[n], cubic, cropped, steps, active, radius, scales, shifts, last, work, out[n])


# Sampling: the same parameters that `params.params_from_uniform` makes of the same uniform numbers.

WORDS, MIDDLE = 624, 397  # of the generator's state


@exact
def twist(state, at, after, far):
    """The word that takes a place in the next turn of the state."""
    mixed = (state[at] & np.uint32(0x80000000)) | (state[after] & np.uint32(0x7FFFFFFF))
    odd = np.uint32(0x9908B0DF) if state[after] & np.uint32(1) else np.uint32(0)
    return np.uint32(state[far] ^ (mixed >> np.uint32(1)) ^ odd)


@exact
def wrap(at):
    return at if at < WORDS else at - WORDS


@exact
def temper(word):
    word ^= word >> np.uint32(11)
    word ^= (word << np.uint32(7)) & np.uint32(0x9D2C5680)
    word ^= (word << np.uint32(15)) & np.uint32(0xEFC60000)
    return np.uint64(np.uint32(word ^ (word >> np.uint32(18))))


@exact
def join_words(high, low):
    """A float64 in [0, 1) of two words."""
    return np.float64(((temper(high) << np.uint64(32)) | temper(low)) & np.uint64((1 << 53) - 1)) * 2.0**-53


@exact
def fill_uniform(seed, state, uniform):
    """The first float64 in [0, 1) of torch's generator (Matsumoto and Nishimura's MT19937) with this seed."""
    value = np.uint32(seed & np.uint64(0xFFFFFFFF))
    state[0] = value
    for i in range(1, WORDS):
        value = np.uint32(np.uint32(1812433253) * (value ^ (value >> np.uint32(30))) + np.uint32(i))
        state[i] = value
    # The first words do not depend on one another, and are enough for two views: these need no new state.
    first = min(uniform.size, (WORDS - MIDDLE) // 2)
    for i in range(first):
        at = 2 * i
        uniform[i] = join_words(twist(state, at, at + 1, at + MIDDLE), twist(state, at + 1, at + 2, at + 1 + MIDDLE))
    if uniform.size == first:
        return
    for at in range(2 * first):
        state[at] = twist(state, at, at + 1, at + MIDDLE)
    at = 2 * first
    for i in range(first, uniform.size):
        state[at] = twist(state, at, at + 1, wrap(at + MIDDLE))
        state[at + 1] = twist(state, at + 1, wrap(at + 2), wrap(at + 1 + MIDDLE))
        uniform[i] = join_words(state[at], state[at + 1])
        at = wrap(at + 2)


@exact
def sample_crop(height, width, scale, ratio, uniform, params):
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for attempt in range(CROP_ATTEMPTS):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * uniform[2 * attempt])
        shape = math.exp(low + (high - low) * uniform[2 * attempt + 1])
        across, down = int(np.rint(math.sqrt(area * shape))), int(np.rint(math.sqrt(area / shape)))
        if 0 < across <= width and 0 < down <= height:
            params[TOP] = int(uniform[U_TOP] * (height - down + 1))
            params[LEFT] = int(uniform[U_LEFT] * (width - across + 1))
            params[HEIGHT], params[WIDTH] = down, across
            return
    across, down = width, height
    if width / height < ratio[0]:
        down = min(height, max(1, int(np.rint(width / ratio[0]))))
    elif width / height > ratio[1]:
        across = min(width, max(1, int(np.rint(height * ratio[1]))))
    params[TOP], params[LEFT] = (height - down) // 2, (width - across) // 2
    params[HEIGHT], params[WIDTH] = down, across


SIGNATURE_SAMPLE = "void(uint64[::1], int64, int64, float64[:,::1], float64[:,:,::1])"


def sample_batch(seeds, height, width, limits, out):
    """Packed parameters of as many views of each image as there are rows of `limits`, without RandAugment.

    Args:
        seeds: [N] seeds of the images' generators.
        height: the height of the images.
        width: the width of the images.
        limits: [V, 19] the limits of each view's parameters.
        out: [V, N, PACKED].
    """
    views = limits.shape[0]
    state = np.empty(WORDS, np.uint32)
    numbers = np.empty(views * UNIFORMS, np.float64)
    for n in range(seeds.size):
        fill_uniform(seeds[n], state, numbers)
        for v in range(views):
            params, limit = out[v, n], limits[v]
            u = numbers[v * UNIFORMS : (v + 1) * UNIFORMS]
            sample_crop(height, width, limit[SCALE : SCALE + 2], limit[RATIO : RATIO + 2], u, params)
            params[FLIP] = u[U_FLIP] < limit[P_FLIP]
            params[JITTER] = u[U_JITTER] < limit[P_JITTER]
            for i in range(4):
                low, high = limit[FACTOR_LIMITS + 2 * i], limit[FACTOR_LIMITS + 2 * i + 1]
                params[FACTORS + i] = low + (high - low) * u[U_FACTORS + i]
                rank = 0  # how many come before it; earlier ones first where they are equal
                for j in range(4):
                    one, other = u[U_ORDER + j], u[U_ORDER + i]
                    if one < other or (one == other and j < i):
                        rank += 1
                params[ORDER + rank] = i
            params[IS_GRAY] = u[U_GRAY] < limit[P_GRAY]
            low, high = limit[SIGMA_LIMITS], limit[SIGMA_LIMITS + 1]
            params[SIGMA] = low + (high - low) * u[U_SIGMA] if u[U_BLUR] < limit[P_BLUR] else 0.0
            params[IS_SOLARIZE] = u[U_SOLARIZE] < limit[P_SOLARIZE]
            for i in range(MAX_OPERATIONS):
                params[OPERATIONS + 2 * i] = -1.0
                params[OPERATIONS + 2 * i + 1] = 0.0


def compiled(cache: bool) -> tuple[Any, Any]:
    """Both entry points as native code, from the cache where it has them."""
    return (
        njit(SIGNATURE.format("uint8"), fastmath=True, error_model="numpy", nogil=True, cache=cache)(run_batch),
        njit(SIGNATURE_SAMPLE, error_model="numpy", nogil=True, cache=cache)(sample_batch),
    )


def compiled_for_floats(cache: bool) -> Any:
    """`run_batch` for pixels that are floats, which few programs need."""
    return njit(SIGNATURE.format("float32"), fastmath=True, error_model="numpy", nogil=True, cache=cache)(run_batch)
