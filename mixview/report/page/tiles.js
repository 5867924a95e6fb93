// Small pictures, cut out of the sheets that all runs share.

const SMOOTH_FROM = 41; // pixels of a tile from which it is smoothed when it grows; smaller ones show their pixels

function sheetOf(set, index) {
  set.images ||= [];
  const number = Math.floor(index / set.sprites.per_sheet);
  if (!set.images[number]) {
    const image = new Image();
    image.waiting = [];
    image.onload = () => image.waiting.splice(0).forEach((draw) => draw());
    image.src = set.sprites.sheets[number];
    set.images[number] = image;
  }
  return set.images[number];
}

// Draws a tile, now or when its sheet has been decoded; `part` is (left, top, width, height) of it, each up to 1.
function paint(context, set, index, x, y, side, part = [0, 0, 1, 1]) {
  const sheet = sheetOf(set, index);
  const { tile, columns, per_sheet: perSheet } = set.sprites;
  const place = index % perSheet;
  const draw = () => {
    context.imageSmoothingEnabled = tile >= SMOOTH_FROM || side < tile;
    context.imageSmoothingQuality = "high";
    context.drawImage(sheet, (place % columns + part[0]) * tile, (Math.floor(place / columns) + part[1]) * tile,
      part[2] * tile, part[3] * tile, x + part[0] * side, y + part[1] * side, part[2] * side, part[3] * side);
  };
  if (sheet.complete && sheet.naturalWidth) draw();
  else sheet.waiting.push(draw);
}

function tileCanvas(side, label) {
  const scale = window.devicePixelRatio || 1;
  const canvas = el("canvas", { width: side * scale, height: side * scale, role: "img", "aria-label": label });
  canvas.style.width = canvas.style.height = `${side}px`;
  return canvas;
}

function tile(set, index, side) {
  const canvas = tileCanvas(side, `image ${index}: ${set.caption(index)}`);
  canvas.dataset.index = index;
  paint(canvas.getContext("2d"), set, index, 0, 0, canvas.width);
  return canvas;
}

// The box of the mixture of image `index` and its partner: (left, top, width, height), each up to 1.
function boxOf(set, index) {
  const [top, bottom, left, right] = set.boxes.subarray(4 * index, 4 * index + 4);
  return [left / 255, top / 255, (right - left) / 255, (bottom - top) / 255];
}

function shareOf(set, index) {
  const [, , width, height] = boxOf(set, index);
  return 1 - width * height;
}

function mixedTile(set, index, side) {
  const other = set.partner(index);
  const canvas = tileCanvas(side, `mixture of ${set.caption(index)} and ${set.caption(other)}`);
  const context = canvas.getContext("2d");
  paint(context, set, index, 0, 0, canvas.width);
  const inner = () => paint(context, set, other, 0, 0, canvas.width, boxOf(set, index));
  const sheet = sheetOf(set, index);
  if (sheet.complete && sheet.naturalWidth) inner();
  else sheet.waiting.push(inner); // after the image that it is pasted into
  return canvas;
}

// A tile with a frame that says whether its class is that of the image it is near to.
function framed(set, index, query, side) {
  const labeled = set.labels && set.labels[index] >= 0 && set.labels[query] >= 0;
  const same = labeled && set.labels[index] === set.labels[query];
  const title = labeled ? `${set.caption(index)}, ${same ? "the same class" : "another class"}` : set.caption(index);
  return el("span", { class: `tile ${labeled ? (same ? "same" : "other") : ""}`, title }, tile(set, index, side));
}
