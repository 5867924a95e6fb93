// Puts the page together.

function comparePanel() {
  const node = document.getElementById("compare");
  if (DATA.runs.length < 2) { node.remove(); return; }
  const pick = (side, label) => {
    const list = el("select", { id: `side-${side}`, onchange: (event) => choosePair(side, DATA.runs[Number(event.target.value)]) },
      DATA.runs.map((run) => el("option", { value: run.number, selected: run === pair.runs[side] }, run.name)));
    return el("label", {}, label, list);
  };
  node.append(pick(0, "Compare"), pick(1, "with"));
}

function themeButton() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const dark = () => (root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const show = () => {
    button.textContent = dark() ? "☀" : "☾";
    button.setAttribute("aria-label", dark() ? "Switch to light" : "Switch to dark");
    for (const map of explorer.maps) map.draw();
  };
  button.addEventListener("click", () => { root.style.colorScheme = dark() ? "light" : "dark"; show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}

pair.runs = firstPair();
const count = DATA.runs.length;
document.getElementById("about").textContent = `${count} ${count === 1 ? "run" : "runs"}, made ${DATA.made} by mixview ${DATA.version}`;
comparePanel();
const sections = [runsSection, evaluationSection, curvesSection, explorerSection, findingsSection, neighborsSection, confusionsSection, detectionSection, viewsSection, costSection, reproduceSection]
  .map((make) => make()).filter(Boolean);
document.getElementById("content").replaceChildren(...DATA.notes.map((note) => el("p", { class: "note" }, note)), ...sections);
document.getElementById("links").append(...sections.map((each) => el("a", { href: `#${each.id}` }, each.querySelector("h2").textContent)));
document.body.insertBefore(el("footer", {}, "This page is one file and needs no network. Numbers of runs are measured; those of the paper are marked as such."), document.getElementById("live"));
themeButton();
