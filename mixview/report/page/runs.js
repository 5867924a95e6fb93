// The runs themselves: settings, training views, detections, cost, and how to repeat them.

const CARDS = 6;

function lastOf(run, name) {
  return run.curves[name] ? run.curves[name].values.at(-1) : null;
}

function badge(run) {
  return el("span", { class: `badge ${run.state}` }, run.state);
}

function notesOf(run) {
  return [run.message ? el("p", { class: "note error" }, run.message) : null, run.notes.map((note) => el("p", { class: "note" }, note))];
}

function card(run) {
  const knn = lastOf(run, "knn");
  const loss = lastOf(run, "loss");
  return el("article", { class: "card", run: run.color },
    el("div", { class: "top" }, el("h3", {}, run.name), badge(run)),
    el("p", { class: "big" }, knn !== null ? percent(knn, 1) : loss !== null ? loss.toPrecision(3) : "–"),
    el("p", { class: "small" }, knn !== null ? "k-NN accuracy, last online evaluation" : loss !== null ? "loss, last" : "no metrics yet"),
    el("dl", {}, run.settings.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]), el("dt", {}, "so far"), el("dd", {}, run.progress)),
    notesOf(run));
}

function runsSection() {
  const hint = ["What was trained on what. ", el("b", {}, "SIM"), " is the method as published, which compares views of one image; ", el("b", {}, "BSIM"),
    " compares mixtures of two images with both of them; ", el("b", {}, "WBSIM"), " does both."];
  if (!DATA.runs.length) return section("runs", "Runs", "There are results, but no runs.");
  if (DATA.runs.length <= CARDS) return section("runs", "Runs", hint, el("div", { class: "cards" }, DATA.runs.map(card)));
  const names = [...new Set(DATA.runs.flatMap((run) => run.settings.map(([name]) => name)))];
  const columns = [{ title: "run", text: true }, { title: "state", text: true }, { title: "k-NN" }, { title: "loss" }, ...names.map((title) => ({ title, text: true })), { title: "so far", text: true }];
  const number = (value, format) => ({ value, content: value === null ? "–" : format(value) });
  const rows = DATA.runs.map((run) => ({
    cells: [
      { value: run.name, content: [bar(run), run.name] }, { value: run.state, content: badge(run) },
      number(lastOf(run, "knn"), (value) => percent(value, 1)), number(lastOf(run, "loss"), (value) => value.toPrecision(3)),
      ...names.map((name) => { const setting = run.settings.find(([each]) => each === name); return setting && { value: setting[1], content: setting[1] }; }),
      { value: run.progress, content: run.progress },
    ],
  }));
  const noted = DATA.runs.filter((run) => run.message || run.notes.length);
  return section("runs", "Runs", hint, sortable("Runs", columns, rows),
    noted.length ? el("details", {}, el("summary", {}, `Notes on ${noted.length} runs`), noted.map((run) => [el("h3", {}, run.name), notesOf(run)])) : null);
}

function viewsSection() {
  if (!DATA.runs.some((run) => run.strip)) return null;
  const blocks = sides((run) => {
    if (!run.strip) return el("p", { class: "note" }, "This run has no picture of its views.");
    const { source, width, height, rows } = run.strip;
    return el("div", { class: "strip" }, el("div", { class: "rows" }, rows.map((row) => el("span", {}, row))),
      el("img", { src: source, width, height, alt: `Training views of ${run.name}, row by row: ${rows.join(", ")}` }));
  });
  return section("views", "Training views", ["Images of the training set, their augmented views and mixtures. ",
    el("b", {}, "Good: one can still tell what a view shows"), ", and two views of an image differ in everything that does not matter. A mixture has parts of two images, and should be near to both."], blocks);
}

function detectionSection() {
  if (!DATA.runs.some((run) => run.detections.length)) return null;
  const blocks = sides((run) => (run.detections.length
    ? run.detections.map(({ source, width, height, rows }) => el("figure", { class: "detections" }, el("figcaption", { class: "small" }, rows[0]),
      el("img", { src: source, width, height, alt: `Test images of ${rows[0]}: the objects that are there, and below them those that were found` })))
    : el("p", { class: "note" }, "No detector was trained from this run's encoder.")));
  return section("detections", "Detections", ["The run's encoder, made into a detector and fine-tuned: test images with the objects that are there, and below them those that it found. ",
    el("b", {}, "Good: the same boxes and masks in both rows"), ", with few beside them."], blocks);
}

function costSection() {
  if (!DATA.runs.length) return null;
  const parts = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.cost.parts)))];
  const columns = [{ title: "run", text: true }, { title: "time" }, { title: "steps" }, { title: "images/s" },
    ...parts.map((title) => ({ title })), { title: "on", text: true }];
  const plain = (value, content = value) => (value === null || value === undefined ? null : { value, content });
  const rows = DATA.runs.map((run) => ({
    cells: [{ value: run.name, content: [bar(run), run.name] },
      plain(run.cost.seconds, run.cost.time) || (run.cost.resumed ? { value: null, content: "resumed" } : null),
      plain(run.cost.steps, run.cost.steps === null ? null : (run.cost.steps || 0).toLocaleString("en")), plain(run.cost.speed),
      ...parts.map((part) => plain(run.cost.parts[part], percent(run.cost.parts[part] ?? 0))), plain(run.cost.device)],
  }));
  const tables = DATA.paper_cost.map((table) => el("div", {}, el("p", { class: "small" }, el("span", { class: "paper" }, `The paper's Table ${table.number}: `), table.caption),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `The paper's table ${table.number}` }, el("table", {}, el("thead", {}, el("tr", {}, table.columns.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, table.rows.map((row) => el("tr", {}, row.map((value) => el("td", {}, value)))))))));
  return section("cost", "Cost", ["Time from the start to the last update, including evaluation and checkpoints. ", el("b", {}, "Compare runs of one machine only"),
    "; BSIM costs what SIM does where mixtures take the place of views, WBSIM computes both.", parts.length ? " In percent, what the time went to: waiting for data, the passes, the update, evaluation, and the rest, such as saving." : ""],
    sortable("Cost", columns, rows), tables.length ? el("details", {}, el("summary", {}, "The paper's own numbers"), tables) : null);
}

function reproduceSection() {
  if (!DATA.runs.length) return null;
  const block = (run) => {
    const button = el("button", { type: "button", "aria-label": `Copy the command of ${run.name}`, onclick: async () => {
      try { await navigator.clipboard.writeText(run.command); button.textContent = "Copied"; } catch { getSelection().selectAllChildren(code); button.textContent = "Selected"; }
    } }, "Copy");
    const code = el("pre", {}, run.command);
    return el("div", { class: "reproduce" }, el("div", { class: "top" }, el("h3", {}, bar(run), run.name), button), code,
      el("p", { class: "small" }, Object.entries(run.versions).map(([name, version]) => `${name} ${version}`).join(", ")));
  };
  const blocks = DATA.runs.map(block);
  return section("reproduce", "Reproduce", ["The command that repeats each run exactly, with every setting that is not the default, and the versions it ran with. Choose another --out while the old run exists. ",
    el("b", {}, "The same versions on the same machine give the same numbers.")],
    blocks.length <= CARDS ? blocks : el("details", {}, el("summary", {}, `${blocks.length} commands`), blocks));
}
