// Elements from plain values. Text only ever becomes text nodes: a name cannot become markup.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "run") node.style.setProperty("--run", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// A dot for a class or cluster, a bar for a run: the same colors mean other things.
function chip(color) {
  return el("span", { class: "chip", run: color, "aria-hidden": "true" });
}

function bar(run) {
  return el("span", { class: "chip bar", run: run.color, "aria-hidden": "true" });
}

// A section of the page: what it is, one line of what to look for, and what it shows.
function section(id, title, hint, ...children) {
  return el("section", { id, "aria-labeledby": `${id}-title` },
    el("h2", { id: `${id}-title` }, title), el("p", { class: "hint" }, hint), ...children);
}

// Buttons of which one is pressed.
function choice(title, options, now, change) {
  const buttons = options.map(([value, label]) => el("button", {
    type: "button", "aria-pressed": String(value === now),
    onclick: (event) => {
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === event.currentTarget));
      change(value);
    },
  }, label));
  return el("fieldset", {}, el("legend", {}, title), buttons);
}

function say(message) {
  document.getElementById("live").textContent = message;
}

function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)} %`;
}
