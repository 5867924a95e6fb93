// Tables that sort by any column.

// columns: { title, under, text }; rows: { cells: [{ value, content }] }. What has no value stays last.
function sortable(name, columns, rows) {
  const body = el("tbody");
  const heads = [];
  const draw = (order) => body.replaceChildren(...order.map((row) => el("tr", {}, row.cells.map((cell, index) =>
    el(index ? "td" : "th", { scope: index ? null : "row", class: columns[index].text ? "text" : null }, cell ? cell.content : "–")))));
  const sort = (index) => {
    const falling = heads[index].getAttribute("aria-sort") !== (columns[index].text ? "ascending" : "descending");
    const down = columns[index].text ? !falling : falling;
    heads.forEach((head, each) => head.setAttribute("aria-sort", each === index ? (down ? "descending" : "ascending") : "none"));
    const withValue = rows.filter((row) => row.cells[index] && row.cells[index].value !== null);
    const compare = (one, other) => (typeof one === "string" ? one.localeCompare(other, undefined, { numeric: true }) : one - other);
    withValue.sort((one, other) => (down ? -1 : 1) * compare(one.cells[index].value, other.cells[index].value));
    draw([...withValue, ...rows.filter((row) => !withValue.includes(row))]);
    say(`sorted by ${columns[index].title}, ${down ? "falling" : "rising"}`);
  };
  columns.forEach((column, index) => heads.push(el("th", { scope: "col", "aria-sort": "none", class: column.text ? "text" : null },
    el("button", { type: "button", onclick: () => sort(index) }, column.title), column.under ? el("small", {}, column.under) : null)));
  draw(rows);
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name },
    el("table", {}, el("thead", {}, el("tr", {}, heads)), body));
}


function evaluationSection() {
  const { columns, lines, notes, warnings } = DATA.evaluation;
  const hint = ["How well labeled test images are classified with the features of each encoder, in percent. ", el("b", {}, "Higher is better; the best of a column is bold."),
    " ± is the standard deviation over seeds or samples. ",
    ...(lines.some((line) => line.cells.some((cell) => cell && cell.paper)) ? [el("span", { class: "paper" }, "Violet numbers are the paper's own"), ", for the same settings: not measured here."] : [])];
  if (!lines.length) {
    return section("evaluation", "Evaluation", ["No run has been evaluated yet: ", el("code", {}, "mixview evaluate knn RUN --data LABELED_IMAGES"), " adds results."]);
  }
  const several = new Set(columns.map((column) => column.data)).size > 1;
  const heads = [{ title: "encoder", text: true }, ...columns.map((column) => ({
    title: `${column.protocol} ${column.metric}`, under: several ? column.data : null,
  }))];
  const runOf = (name) => DATA.runs.find((run) => run.name === name);
  const rows = lines.map((line) => ({
    cells: [
      { value: line.name, content: [line.runs.length ? bar(runOf(line.runs[0])) : null, line.name] },
      ...line.cells.map((cell) => cell && {
        value: cell.mean,
        content: [cell.best ? el("b", { class: "best" }, cell.text) : cell.text,
          cell.runs > 1 ? el("span", { class: "small" }, ` (${cell.runs} results)`) : null,
          cell.paper ? el("span", { class: "paper", title: `Paper: ${cell.paper.where}` }, `paper: ${cell.paper.printed} (${cell.paper.label})`) : null],
      }),
    ],
  }));
  const descriptions = [...new Set(columns.flatMap((column) => column.descriptions.map((each) => `${column.protocol}: ${each} On ${column.data}.`)))];
  const sources = [...new Set(lines.flatMap((line) => line.cells).filter((cell) => cell && cell.paper).map((cell) => `${cell.paper.label}: ${cell.paper.where}`))];
  return section("evaluation", "Evaluation", hint, sortable("Evaluation", heads, rows),
    warnings.map((warning) => el("p", { class: "note error" }, warning)),
    el("details", {}, el("summary", {}, "How these metrics were computed"),
      descriptions.map((each) => el("p", { class: "small" }, each)),
      sources.map((source) => el("p", { class: "small" }, el("span", { class: "paper" }, "The paper's "), source)),
      notes.map((note) => el("p", { class: "small" }, note))));
}
