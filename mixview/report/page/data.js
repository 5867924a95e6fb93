// What the page shows, unpacked; the colors; and which two runs are compared.

const DATA = JSON.parse(document.getElementById("data").textContent);

function unpack(text, kind) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new kind(bytes.buffer);
}

// Colors that stay apart on light and dark, and to most color-blind eyes, first; then evenly round the circle.
const COLORS = ["#e07b00", "#2f86d6", "#1f9e74", "#c9528f", "#8a6bd1", "#b3a100", "#d1495b", "#3aa6b9", "#8c6d4f", "#7f8ea3"];
function colorOf(number) {
  return number < COLORS.length ? COLORS[number] : `hsl(${(number * 137.508) % 360} 58% 52%)`;
}

DATA.sets.forEach((set) => {
  set.labels = set.labels && unpack(set.labels, Int16Array);
  set.boxes = set.boxes && unpack(set.boxes, Uint8Array);
  set.caption = (index) => (set.captions || set.names)[index];
  set.partner = (index) => set.count - 1 - index;
});

DATA.runs.forEach((run, number) => {
  run.number = number;
  run.color = colorOf(number);
  run.imageSet = run.set === null ? null : DATA.sets[run.set];
  if (run.map) {
    const { places, near, mixed, parents, clusters } = run.map;
    Object.assign(run.map, {
      places: unpack(places, Uint16Array), near: unpack(near, Uint16Array), mixed: unpack(mixed, Uint16Array),
      parents: unpack(parents, Uint8Array), clusters: unpack(clusters, Uint8Array),
    });
    run.map.x = (index) => run.map.places[2 * index] / 65535;
    run.map.y = (index) => 1 - run.map.places[2 * index + 1] / 65535;
    run.map.mixedAt = (index) => [run.map.mixed[2 * index] / 65535, 1 - run.map.mixed[2 * index + 1] / 65535];
    run.map.nearest = (index) => Array.from(run.map.near.subarray(index * run.map.near_count, (index + 1) * run.map.near_count));
    run.map.cosine = (index, parent) => run.map.parents[2 * index + parent] / 127.5 - 1;
  }
});

// Two runs side by side: one as published (SIM) and one with mixtures, where there are such on the same images.
const pair = { runs: [], listeners: [] };

function firstPair() {
  const mapped = DATA.runs.filter((run) => run.map);
  const candidates = mapped.length ? mapped : DATA.runs;
  const left = candidates.find((run) => run.objective === "sim") || candidates[0];
  const others = candidates.filter((run) => run !== left);
  const right = others.find((run) => run.set === left.set && run.objective !== left.objective)
    || others.find((run) => run.set === left.set) || others[0];
  return [left, right].filter(Boolean);
}

function onPairChange(react) {
  pair.listeners.push(react);
  react();
}

function choosePair(side, run) {
  pair.runs[side] = run;
  for (const react of pair.listeners) react();
}

// A block for each of the two runs, redrawn when another is chosen.
function sides(draw) {
  const node = el("div", { class: "sides" });
  onPairChange(() => node.replaceChildren(...pair.runs.map((run, side) =>
    el("div", { class: "side" }, el("h3", {}, bar(run), run.name), draw(run, side)))));
  return node;
}
