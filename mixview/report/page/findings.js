// What the features say of the images without labels: collapse, clusters, near-duplicates, outliers.

function findingsSection() {
  if (!DATA.runs.some((run) => run.findings)) return null;
  const count = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
  const row = (title, set, images) => el("div", { class: "finding" }, el("span", { class: "small" }, title),
    el("span", { class: "tiles" }, images.map((index) => el("span", { class: "tile", title: set.caption(index) }, tile(set, index, 44)))));
  const blocks = sides((run) => {
    if (!run.findings) return el("p", { class: "note" }, "There is no encoder, or there are no images to show.");
    const { collapse, clusters, duplicates, duplicate_groups: groups, duplicate_images: copies, threshold, outliers } = run.findings;
    const set = run.imageSet;
    return [el("p", { class: collapse.collapsed ? "note error" : "verdict" }, collapse.text),
      el("h4", {}, count(clusters.length, "cluster", "clusters")),
      clusters.map((each, number) => row([chip(colorOf(number)), ` ${count(each.size, "image", "images")}`], set, each.images)),
      el("h4", {}, groups ? `Near-duplicates: ${count(groups, "group", "groups")}, ${count(copies, "copy", "copies")}` : `No near-duplicates: no two images have a cosine of ${threshold} or more`),
      duplicates.map((each) => row(count(each.size, "image", "images"), set, each.images)),
      groups > duplicates.length ? el("p", { class: "small" }, `… and ${count(groups - duplicates.length, "more group", "more groups")}`) : null,
      outliers.length ? [el("h4", {}, "Outliers, the loneliest first"), row("like no other", set, outliers)] : null];
  });
  return section("findings", "Without labels", ["What the features alone say about these images: whether they collapsed, groups of similar images with the most typical ones, near-duplicates, and outliers. ",
    el("b", {}, "Good: clusters of one kind of thing each"), "; mixview neighbors --write_list leaves duplicates and outliers out."], blocks);
}
