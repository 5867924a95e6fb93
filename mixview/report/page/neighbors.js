// Galleries of neighbors, and confused classes, two runs side by side.

const QUERIES = 6;

// Every 31st image, of other classes where there are labels; each `turn` begins elsewhere.
function queryImages(set, turn) {
  const queries = [];
  const seen = new Set();
  for (let tried = 0; tried < set.count && queries.length < QUERIES; tried++) {
    const index = (turn * 7919 + tried * 31) % set.count;
    const label = set.labels ? set.labels[index] : index;
    if (queries.includes(index) || (seen.has(label) && seen.size < (set.classes.length || set.count))) continue;
    seen.add(label);
    queries.push(index);
  }
  return queries;
}

// The share of all neighbors that have the class of the image they are near to.
function sameClass(run) {
  const { labels, count } = run.imageSet;
  let same = 0;
  let all = 0;
  for (let index = 0; index < count; index++) {
    for (const near of run.map.nearest(index)) {
      if (labels[index] < 0 || labels[near] < 0) continue;
      all += 1;
      same += labels[index] === labels[near];
    }
  }
  return all ? same / all : null;
}

function neighborsSection() {
  if (!DATA.runs.some((run) => run.map && run.map.near_count)) return null;
  let turn = 0;
  const node = el("div");
  const draw = () => {
    const mapped = pair.runs.filter((run) => run.map && run.map.near_count);
    const set = mapped.length ? mapped[0].imageSet : null;
    const compared = mapped.filter((run) => run.imageSet === set);
    const heads = el("div", { class: "pairs" }, compared.map((run) => {
      const share = set.labels ? sameClass(run) : null;
      return el("h3", {}, bar(run), run.name, share === null ? null : el("span", { class: "small" }, ` ${percent(share)} of all neighbors share the class`));
    }));
    node.replaceChildren(...(set ? [el("div", { class: "query" }, el("div", { class: "query-image small" }, "query"), heads),
      ...queryImages(set, turn).map((index) => el("div", { class: "query" },
        el("div", { class: "query-image" }, tile(set, index, 64), el("div", { class: "caption" }, set.caption(index))),
        el("div", { class: "pairs" }, compared.map((run) => el("div", { class: "tiles" }, bar(run), run.map.nearest(index).map((near) => framed(set, near, index, 44)))))))] : []));
  };
  onPairChange(draw);
  return section("neighbors", "Nearest neighbors", ["The images that each encoder finds most like the one on the left, nearest first. ",
    el("b", {}, "Good: they show the same thing"), ", not merely the same colors; a green frame is the same class, a red one another."],
    el("div", { class: "row" }, el("button", { type: "button", onclick: () => { turn += 1; draw(); } }, "Other images")), node);
}

function confusionsSection() {
  if (!DATA.runs.some((run) => run.confusions)) return null;
  const blocks = sides((run) => {
    if (!run.confusions) return el("p", { class: "note" }, "There are no labels, or no encoder, to classify with.");
    const { correct, queries, worst } = run.confusions;
    const set = run.imageSet;
    return [el("p", { class: "small" }, `${percent(queries ? correct / queries : 0, 1)} of ${queries.toLocaleString("en")} images are classified correctly by their neighbors among the images shown here.`),
      worst.map((each) => el("div", { class: "confusion" },
        el("span", {}, el("b", {}, set.classes[each.true]), " confused with ", el("b", {}, set.classes[each.predicted]), el("span", { class: "small" }, ` ${each.mistakes} of ${each.total}`)),
        el("span", { class: "tiles" }, each.examples.map((index) => tile(set, index, 36))))),
      worst.length ? null : el("p", {}, "No class is confused with another.")];
  });
  return section("confusions", "Worst confusions", ["The classes that the neighbors confuse most often, with the most confident mistakes. ",
    el("b", {}, "Good: short lists of look-alikes"), "; confusions of things that look nothing alike mean that something was not learned."], blocks);
}
