// The embedding explorer: a map of the images for each of two runs, linked by the image that is chosen.

const explorer = { chosen: null, hovered: null, coloring: null, pictures: false, group: null, maps: [] };
const CELLS = 64;

function groupOf(run, index) {
  return explorer.coloring === "class" && run.imageSet.labels ? run.imageSet.labels[index] : run.map.clusters[index];
}

class ImageMap {
  constructor(run) {
    this.run = run;
    this.set = run.imageSet;
    this.view = { scale: 1, x: 0, y: 0 };
    this.side = 0;
    this.points = el("canvas", { "aria-hidden": "true" });
    this.marks = el("canvas", { "aria-hidden": "true" });
    this.node = el("div", {
      class: "map", tabindex: "0", role: "application", "data-run": run.name,
      "aria-label": `Map of ${this.set.count} images by ${run.name}. Arrow keys move between images, Enter chooses one, plus and minus zoom, Escape lets go.`,
    }, this.points, this.marks, el("div", { class: "zoom" },
      el("button", { type: "button", "aria-label": `Zoom in, ${run.name}`, onclick: () => this.zoom(1.5) }, "+"),
      el("button", { type: "button", "aria-label": `Zoom out, ${run.name}`, onclick: () => this.zoom(1 / 1.5) }, "−"),
      el("button", { type: "button", "aria-label": `Whole map, ${run.name}`, onclick: () => this.zoom(0) }, "⤢")));
    this.index();
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  // Points by the cell of a grid that they are in, so that the one under the pointer is found without a search.
  index() {
    this.cells = new Map();
    for (let point = 0; point < this.set.count; point++) {
      const cell = this.cellOf(this.run.map.x(point), this.run.map.y(point));
      if (!this.cells.has(cell)) this.cells.set(cell, []);
      this.cells.get(cell).push(point);
    }
  }

  cellOf(x, y) {
    const clamp = (value) => Math.max(0, Math.min(CELLS - 1, Math.floor(value * CELLS)));
    return clamp(y) * CELLS + clamp(x);
  }

  // From the map (0 to 1) to pixels, and back.
  at(x, y) {
    const inner = this.side - 28;
    return [14 + ((x - 0.5) * this.view.scale + 0.5 + this.view.x) * inner, 14 + ((y - 0.5) * this.view.scale + 0.5 + this.view.y) * inner];
  }

  back(left, top) {
    const inner = this.side - 28;
    return [((left - 14) / inner - 0.5 - this.view.x) / this.view.scale + 0.5, ((top - 14) / inner - 0.5 - this.view.y) / this.view.scale + 0.5];
  }

  pointAt(index) { return this.at(this.run.map.x(index), this.run.map.y(index)); }

  find(left, top, reach = 14) {
    const [x, y] = this.back(left, top);
    const wide = reach / ((this.side - 28) * this.view.scale);
    let best = null;
    let nearest = reach * reach;
    for (let row = Math.floor((y - wide) * CELLS); row <= Math.floor((y + wide) * CELLS); row++) {
      for (let column = Math.floor((x - wide) * CELLS); column <= Math.floor((x + wide) * CELLS); column++) {
        if (row < -1 || column < -1 || row > CELLS || column > CELLS) continue;
        for (const point of this.cells.get(this.cellOf((column + 0.5) / CELLS, (row + 0.5) / CELLS)) || []) {
          const [px, py] = this.pointAt(point);
          const distance = (px - left) ** 2 + (py - top) ** 2;
          if (distance < nearest) [nearest, best] = [distance, point];
        }
      }
    }
    return best;
  }

  listen() {
    let drag = null;
    const local = (event) => {
      const frame = this.node.getBoundingClientRect();
      return [event.clientX - frame.left, event.clientY - frame.top];
    };
    this.node.addEventListener("pointermove", (event) => {
      const [left, top] = local(event);
      if (drag) {
        const inner = this.side - 28;
        drag.moved ||= Math.hypot(left - drag.left, top - drag.top) > 4;
        if (drag.moved && this.view.scale > 1) {
          this.view.x = drag.x + (left - drag.left) / inner;
          this.view.y = drag.y + (top - drag.top) / inner;
          this.drawSoon();
        }
        return;
      }
      hover(event.target.closest(".zoom") ? null : this.find(left, top), this, event.clientX, event.clientY);
    });
    this.node.addEventListener("pointerleave", () => { drag = null; hover(null); });
    this.node.addEventListener("pointerdown", (event) => {
      if (event.target.closest(".zoom")) return;
      const [left, top] = local(event);
      drag = { left, top, x: this.view.x, y: this.view.y, moved: false };
    });
    this.node.addEventListener("pointerup", (event) => {
      const moved = drag && drag.moved && this.view.scale > 1;
      const began = drag;
      drag = null;
      if (!began || moved) return;
      choose(this.find(...local(event), 22));
    });
    this.node.addEventListener("wheel", (event) => {
      if (document.activeElement !== this.node && !event.ctrlKey) return; // the page scrolls until the map is entered
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, local(event));
    }, { passive: false });
    this.node.addEventListener("keydown", (event) => this.key(event));
    this.node.addEventListener("blur", () => { if (explorer.hovered !== null) hover(null); });
  }

  key(event) {
    if (event.target !== this.node) return;
    const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (ways[event.key]) this.step(ways[event.key]);
    else if (event.key === "Enter" || event.key === " ") choose(explorer.hovered);
    else if (event.key === "Escape") { choose(null); hover(null); }
    else if (event.key === "+" || event.key === "=") this.zoom(1.5);
    else if (event.key === "-") this.zoom(1 / 1.5);
    else return;
    event.preventDefault();
  }

  // To the nearest image in a direction; the first key press begins in the middle.
  step([dx, dy]) {
    const from = explorer.hovered ?? explorer.chosen;
    const [x, y] = from === null ? [this.side / 2, this.side / 2] : this.pointAt(from);
    let best = null;
    let least = Infinity;
    for (let point = 0; point < this.set.count; point++) {
      if (point === from) continue;
      const [px, py] = this.pointAt(point);
      const along = (px - x) * dx + (py - y) * dy;
      const aside = Math.abs((px - x) * dy) + Math.abs((py - y) * dx);
      if (from !== null && along <= 0.01) continue;
      const cost = from === null ? Math.hypot(px - x, py - y) : along + 2.5 * aside;
      if (cost < least) [least, best] = [cost, point];
    }
    if (best === null) return;
    const frame = this.node.getBoundingClientRect();
    const [left, top] = this.pointAt(best);
    hover(best, this, frame.left + left, frame.top + top);
    say(`image ${best}: ${this.set.caption(best)}`);
  }

  zoom(factor, [left, top] = [this.side / 2, this.side / 2]) {
    const [x, y] = this.back(left, top);
    this.view.scale = factor ? Math.max(1, Math.min(40, this.view.scale * factor)) : 1;
    if (this.view.scale === 1) this.view.x = this.view.y = 0;
    else {
      const inner = this.side - 28;
      this.view.x = (left - 14) / inner - 0.5 - (x - 0.5) * this.view.scale;
      this.view.y = (top - 14) / inner - 0.5 - (y - 0.5) * this.view.scale;
    }
    this.drawSoon();
  }

  // Once per frame, however many events a frame has.
  drawSoon() {
    this.waiting ||= requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  prepare(canvas) {
    const scale = window.devicePixelRatio || 1;
    const side = Math.round(this.side * scale);
    if (canvas.width !== side) canvas.width = canvas.height = side;
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.side, this.side);
    return context;
  }

  draw() {
    this.side = this.node.clientWidth; // read once: every read makes the browser compute its layout
    if (!this.side) return;
    const context = this.prepare(this.points);
    if (explorer.pictures) this.drawPictures(context);
    else this.drawDots(context);
    this.drawMarks();
  }

  // One color at a time: the dots of one are one path.
  drawDots(context) {
    const radius = Math.max(1.8, Math.min(6, 95 / Math.sqrt(this.set.count))) * Math.min(2, Math.sqrt(this.view.scale));
    const tiny = radius < 2.5; // nobody sees that a dot of four pixels is square, and squares are drawn faster
    const side = Math.round(2 * radius);
    const groups = new Map();
    for (let point = 0; point < this.set.count; point++) {
      const group = groupOf(this.run, point);
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(point);
    }
    for (const [group, points] of groups) {
      context.fillStyle = group < 0 ? "#8a93a3" : colorOf(group);
      context.globalAlpha = explorer.group === null ? 0.82 : group === explorer.group ? 0.95 : 0.1;
      context.beginPath();
      for (const point of points) {
        const [x, y] = this.pointAt(point);
        if (x < -9 || y < -9 || x > this.side + 9 || y > this.side + 9) continue;
        if (tiny) context.fillRect(Math.round(x - radius), Math.round(y - radius), side, side);
        else {
          context.moveTo(x + radius, y);
          context.arc(x, y, radius, 0, 2 * Math.PI);
        }
      }
      context.fill();
    }
    context.globalAlpha = 1;
  }

  // The images themselves, as many as have room.
  drawPictures(context) {
    const size = Math.max(22, Math.min(48, this.side / 18));
    const taken = new Set();
    for (let point = 0; point < this.set.count; point++) {
      const group = groupOf(this.run, point);
      if (explorer.group !== null && group !== explorer.group) continue;
      const [x, y] = this.pointAt(point);
      const cell = `${Math.floor(x / (size + 3))} ${Math.floor(y / (size + 3))}`;
      if (taken.has(cell) || x < 0 || y < 0 || x > this.side || y > this.side) continue;
      taken.add(cell);
      context.fillStyle = group < 0 ? "#8a93a3" : colorOf(group);
      context.fillRect(x - size / 2 - 2, y - size / 2 - 2, size + 4, size + 4);
      paint(context, this.set, point, x - size / 2, y - size / 2, size);
    }
  }

  drawMarks() {
    if (!this.side) return;
    const context = this.prepare(this.marks);
    const ink = getComputedStyle(this.node).color;
    const ring = (point, radius, width) => {
      const [x, y] = this.pointAt(point);
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.lineWidth = width + 2.5;
      context.strokeStyle = getComputedStyle(this.node).backgroundColor;
      context.stroke();
      context.lineWidth = width;
      context.strokeStyle = ink;
      context.stroke();
    };
    const line = (from, to, dashes) => {
      context.beginPath();
      context.setLineDash(dashes);
      context.moveTo(...from);
      context.lineTo(...to);
      context.lineWidth = 1.4;
      context.strokeStyle = ink;
      context.stroke();
      context.setLineDash([]);
    };
    if (explorer.chosen !== null && explorer.chosen < this.set.count && sharesChoice(this.run)) {
      const chosen = explorer.chosen;
      for (const near of this.run.map.nearest(chosen)) {
        line(this.pointAt(chosen), this.pointAt(near), []);
        ring(near, 5, 1.6);
      }
      for (const mixture of mixturesOf(this.set, chosen)) {
        const place = this.at(...this.run.map.mixedAt(mixture));
        line(this.pointAt(mixture), place, [5, 4]);
        line(this.pointAt(this.set.partner(mixture)), place, [1, 4]);
        context.save();
        context.translate(...place);
        context.rotate(Math.PI / 4);
        context.fillStyle = ink;
        context.fillRect(-6, -6, 12, 12);
        context.fillStyle = mixture === chosen ? "#ffcf33" : "#fff";
        context.fillRect(-4, -4, 8, 8);
        context.restore();
      }
      ring(chosen, 9, 3);
    }
    if (explorer.hovered !== null && explorer.hovered < this.set.count && this.set === explorer.over) ring(explorer.hovered, 7, 2);
  }
}

// Both mixtures that an image is in: mostly this one, and mostly the other.
function mixturesOf(set, index) {
  return set.boxes && set.partner(index) !== index ? [index, set.partner(index)] : [];
}

function sharesChoice(run) { return run.imageSet === explorer.owner; }

const tip = el("div", { class: "tip", hidden: true, role: "status" });

function hover(index, map, left, top) {
  explorer.hovered = index;
  explorer.over = map ? map.set : null;
  tip.hidden = index === null;
  if (index !== null) {
    tip.replaceChildren(tile(map.set, index, 112), map.set.caption(index));
    tip.style.left = `${Math.max(4, Math.min(left + 16, innerWidth - 150))}px`;
    tip.style.top = `${top + 180 > innerHeight ? Math.max(4, top - 170) : top + 16}px`;
  }
  for (const each of explorer.maps) each.drawMarks();
}

function choose(index) {
  if (index !== null && explorer.over) explorer.owner = explorer.over;
  explorer.chosen = index;
  for (const each of explorer.maps) each.drawMarks();
  explorer.showChosen();
  if (index !== null) say(`chosen: image ${index}, ${explorer.owner.caption(index)}`);
}

// Details of the chosen image: its neighbors by each run, and where its mixtures fall.
function chosenDetail() {
  const set = explorer.owner;
  const index = explorer.chosen;
  const mine = pair.runs.filter((run) => run.map && run.imageSet === set);
  return [
    el("div", { class: "head" }, tile(set, index, 96), el("div", {}, el("h3", {}, set.caption(index)),
      el("p", { class: "small" }, `image ${index}${set.captions ? `, ${set.names[index]}` : ""}`),
      el("p", { class: "small" }, set.labels ? "Nearest images first. Green frame: the same class; red: another." : "Nearest images first."))),
    el("div", { class: "sides" }, mine.map((run) => el("div", { class: "side", "data-neighbors": run.name },
      el("h3", {}, bar(run), run.name),
      el("div", { class: "tiles" }, run.map.nearest(index).map((near) => framed(set, near, index, 52))),
      mixturesOf(set, index).map((mixture) => {
        const share = shareOf(set, mixture);
        const [first, second] = [set.caption(mixture), set.caption(set.partner(mixture))];
        return el("div", { class: "mixture" }, mixedTile(set, mixture, 52), el("span", {},
          `${percent(share)} ${first} + ${percent(1 - share)} ${second}: cosine ${run.map.cosine(mixture, 0).toFixed(2)} to the first, ${run.map.cosine(mixture, 1).toFixed(2)} to the second`));
      })))),
  ];
}

function groupLegend(node) {
  const run = pair.runs.find((each) => each.map);
  if (!run) return;
  const names = explorer.coloring === "class" && run.imageSet.labels ? run.imageSet.classes
    : Array.from({ length: run.map.groups }, (_, number) => `cluster ${number + 1}`);
  node.replaceChildren(...names.slice(0, 40).map((name, group) => el("button", {
    type: "button", "aria-pressed": String(explorer.group === group),
    onclick: () => {
      explorer.group = explorer.group === group ? null : group;
      groupLegend(node);
      for (const map of explorer.maps) map.draw();
    },
  }, chip(colorOf(group)), el("span", {}, name))), names.length > 40 ? el("span", { class: "small" }, `and ${names.length - 40} more`) : "");
}

function explorerSection() {
  if (!DATA.runs.some((run) => run.map)) return null;
  const labeled = DATA.runs.some((run) => run.map && run.imageSet.labels);
  explorer.coloring = labeled ? "class" : "cluster";
  const legend = el("div", { class: "legend pick", role: "group", "aria-label": "Show one group only" });
  const redraw = () => { for (const map of explorer.maps) map.draw(); };
  const controls = el("div", { class: "row" },
    labeled ? choice("Color by", [["class", "class"], ["cluster", "cluster"]], "class", (value) => { explorer.coloring = value; explorer.group = null; groupLegend(legend); redraw(); }) : null,
    choice("Show", [[false, "dots"], [true, "pictures"]], false, (value) => { explorer.pictures = value; redraw(); }));
  const detail = el("div", { class: "detail", role: "region", "aria-label": "The chosen image", hidden: true });
  explorer.showChosen = () => {
    detail.hidden = explorer.chosen === null;
    detail.replaceChildren(...(explorer.chosen === null ? [] : chosenDetail()));
  };
  const caption = el("p", { class: "small" });
  const panels = el("div", { class: "sides" });
  onPairChange(() => {
    explorer.maps = [];
    panels.replaceChildren(...pair.runs.map((run) => {
      const map = run.map && new ImageMap(run);
      if (map) explorer.maps.push(map);
      return el("div", { class: "side" }, el("h3", {}, bar(run), run.name, el("span", { class: "small" }, `${run.method}, ${run.objective}`)),
        map ? map.node : el("p", { class: "note" }, run.notes.at(-1) || "There is no map of this run."));
    }));
    const sets = [...new Set(pair.runs.filter((run) => run.map).map((run) => run.imageSet))];
    if (!sets.includes(explorer.owner)) [explorer.chosen, explorer.owner] = [null, sets[0]];
    caption.textContent = sets.map((set) => `${set.count.toLocaleString("en")} images of ${set.description}.`).join(" ")
      + " The map is t-SNE. Diamonds are mixtures, drawn beside the images with the nearest features.";
    explorer.group = null;
    groupLegend(legend);
    explorer.showChosen();
  });
  document.body.append(tip);
  return section("explorer", "Embedding explorer", ["Every dot is an image; images with similar features lie together. ",
    el("b", {}, "Good: dots of one color form islands."), " Point at a dot to see its image; press it for its neighbors and for where its mixtures fall (diamonds: they should lie toward the image they show most of)."],
    controls, legend, panels, caption, detail);
}
