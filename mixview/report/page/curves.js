// Curves over the epochs, one small chart per metric, all runs in each.

const METRICS = [
  ["loss", "Loss", "Falls during training. Losses of different methods and objectives cannot be compared.", (v) => v.toPrecision(3)],
  ["knn", "k-NN accuracy", "Held-out images whose neighbors have their class: higher is better.", (v) => percent(v, 1)],
  ["std", "Standard deviation of features", "Near 1 is good; near 0 every image has the same features (collapse).", (v) => v.toFixed(2)],
  ["effective_rank", "Effective rank", "How many directions the features use: higher is better, near 1 is collapse.", (v) => v.toFixed(1)],
  ["alignment", "Alignment", "Distance between two views of one image: lower is better.", (v) => v.toFixed(2)],
  ["uniformity", "Uniformity", "How evenly images fill the space: lower is better, −4 is about the least.", (v) => v.toFixed(2)],
  ["mixture_larger", "A mixture and its larger part", "Cosine of their features: should be higher than for the smaller part.", (v) => v.toFixed(2)],
  ["mixture_smaller", "A mixture and its smaller part", "Cosine of their features: above 0, the smaller part is noticed.", (v) => v.toFixed(2)],
  ["mixture_follows_lam", "Features follow the pixels", "1: a mixture is as near to each part as there is of it; 0: it is not.", (v) => v.toFixed(2)],
];
const CHART = { width: 340, height: 190, left: 44, right: 10, top: 8, bottom: 26 };

// Round numbers that span a range, about four steps apart.
function ticks(low, high) {
  const rough = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const values = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + 1e-9 * step; value += step) values.push(Number(value.toPrecision(12)));
  return values;
}

function short(value) {
  const size = Math.abs(value);
  return size >= 1e4 ? value.toExponential(0) : String(Number(value.toPrecision(4)));
}

function chart([name, title, description, format], runs, hidden) {
  const { width, height, left, right, top, bottom } = CHART;
  const drawn = runs.filter((run) => run.curves[name] && !hidden.has(run));
  const all = runs.filter((run) => run.curves[name]);
  const values = (drawn.length ? drawn : all).flatMap((run) => run.curves[name].values);
  let [low, high] = [Math.min(...values), Math.max(...values)];
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  [low, high] = [low - room, high + room];
  const last = Math.max(...all.flatMap((run) => run.curves[name].epochs));
  const first = Math.min(0, last);
  const x = (epoch) => left + (epoch - first) / (last - first || 1) * (width - left - right);
  const y = (value) => height - bottom - (value - low) / (high - low) * (height - top - bottom);
  const summary = drawn.map((run) => `${run.name} ${format(run.curves[name].values.at(-1))}`).slice(0, 8).join(", ");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title} over the epochs. At the end: ${summary}.` });
  for (const value of ticks(low, high)) {
    picture.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, name === "knn" ? percent(value) : short(value)));
  }
  for (const value of ticks(first, last)) {
    picture.append(svg("text", { x: x(value), y: height - 8, "text-anchor": "middle" }, short(value)));
  }
  for (const run of drawn) {
    const { epochs, values: heights } = run.curves[name];
    const line = epochs.map((epoch, index) => `${x(epoch).toFixed(1)},${y(heights[index]).toFixed(1)}`);
    picture.append(svg("polyline", { class: "curve", points: line.join(" "), stroke: run.color, opacity: drawn.length > 8 ? 0.75 : 1 }));
    const [endX, endY] = line.at(-1).split(",");
    if (drawn.length <= 12) picture.append(svg("circle", { cx: endX, cy: endY, r: 3, fill: run.color }));
  }
  const figure = el("figure", { class: "chart", "data-metric": name }, el("h3", {}, title), el("p", { class: "small" }, description), picture);
  readOut(figure, picture, drawn, name, format, x);
  return figure;
}

// Under the pointer: the epoch, and every run's value there.
function readOut(figure, picture, drawn, name, format, x) {
  const rule = svg("line", { class: "rule", y1: CHART.top, y2: CHART.height - CHART.bottom, visibility: "hidden" });
  const box = el("div", { class: "readout", hidden: true });
  picture.append(rule);
  figure.append(box);
  picture.addEventListener("pointerleave", () => { box.hidden = true; rule.setAttribute("visibility", "hidden"); });
  picture.addEventListener("pointermove", (event) => {
    if (!drawn.length) return;
    const frame = picture.getBoundingClientRect();
    const at = (event.clientX - frame.left) / frame.width * CHART.width;
    const read = drawn.map((run) => {
      const { epochs, values } = run.curves[name];
      let near = 0;
      epochs.forEach((epoch, index) => { if (Math.abs(x(epoch) - at) < Math.abs(x(epochs[near]) - at)) near = index; });
      return { run, epoch: epochs[near], value: values[near] };
    });
    const here = read.reduce((best, each) => (Math.abs(x(each.epoch) - at) < Math.abs(x(best.epoch) - at) ? each : best));
    rule.setAttribute("x1", x(here.epoch));
    rule.setAttribute("x2", x(here.epoch));
    rule.setAttribute("visibility", "visible");
    const listed = read.sort((one, other) => other.value - one.value).slice(0, 10);
    box.replaceChildren(el("div", { class: "small" }, `epoch ${short(here.epoch)}`),
      ...listed.map(({ run, value }) => el("div", {}, bar(run), `${run.name}: ${format(value)}`)),
      read.length > 10 ? el("div", { class: "small" }, `and ${read.length - 10} more`) : "");
    box.hidden = false;
    const owner = figure.getBoundingClientRect();
    const start = Math.min(event.clientX - owner.left + 14, owner.width - box.offsetWidth);
    box.style.left = `${Math.max(0, start)}px`;
    box.style.top = `${event.clientY - owner.top + 16}px`;
  });
}

function curvesSection() {
  const runs = DATA.runs.filter((run) => Object.keys(run.curves).length);
  if (!runs.length) return null;
  const metrics = METRICS.filter(([name]) => runs.some((run) => run.curves[name]));
  const hidden = new Set();
  const charts = el("div", { class: "charts" });
  const draw = () => charts.replaceChildren(...metrics.map((metric) => chart(metric, runs, hidden)));
  const legend = el("div", { class: "legend", role: "group", "aria-label": "Runs that are drawn" }, runs.map((run) => el("button", {
    type: "button", "aria-pressed": "true",
    onclick: (event) => {
      if (!hidden.delete(run)) hidden.add(run);
      event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(run)));
      draw();
    },
  }, bar(run), el("span", {}, run.name))));
  draw();
  return section("curves", "Training curves", ["Metrics of each run over the epochs. ",
    el("b", {}, "Good: k-NN accuracy rises and stays up, standard deviation and rank stay high."), " Point at a chart for its values; press a name to hide a run."],
    runs.length > 1 ? legend : null, charts);
}
