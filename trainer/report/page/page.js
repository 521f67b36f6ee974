// Draws each chart anew in place of its drawing, so that it can be hovered over, dragged and zoomed.
// Part of the bundle that vl-convert makes, which has vegaEmbed. Nothing is evaluated: `ast`.
const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
const specs = JSON.parse(document.getElementById("specs").textContent);

async function show(figure, isLog) {
  const spec = structuredClone(specs[figure.dataset.chart]);
  if (spec.mark?.type === "line" && !spec.mark.point) {
    spec.mark.point = { size: 40, fillOpacity: 0, strokeOpacity: 0 };  // something to hover over
  }
  if (isLog) spec.encoding.y.scale = { type: "log" };
  const box = figure.querySelector(".chart");
  await vegaEmbed(box, spec, {
    actions: false, ast: true, renderer: "svg", tooltip: { theme: isDark ? "dark" : "light" },
  });
  figure.dataset.drawn = isLog ? "log" : "linear";
}

for (const control of document.querySelectorAll(".control")) control.hidden = false;

for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const log = figure.querySelector("input.log");
  log?.addEventListener("change", () => show(figure, log.checked));
  show(figure, false);
}

// A table sorts by the column whose heading is pressed: numbers as numbers.
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("thead th").forEach((heading, column) => {
    heading.querySelector("button")?.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const rows = [...table.tBodies[0].rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
        return down ? -order : order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}
