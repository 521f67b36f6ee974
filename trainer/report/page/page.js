// Replaces each drawing by an interactive chart: with tooltips, dragging and zooming.
// vl-convert bundles it with vegaEmbed. `ast`: no expression is evaluated as JavaScript.
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
  box.querySelector("svg").setAttribute("aria-hidden", "true");  // the box has a label
  box.removeAttribute("tabindex");  // nothing to scroll
  figure.dataset.drawn = isLog ? "log" : "linear";
}

for (const control of document.querySelectorAll(".control")) control.hidden = false;

const { version } = document.body.dataset;  // of a page that is served
const kept = version ? sessionStorage : {};

for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const log = figure.querySelector("input.log");
  if (log) log.checked = kept[figure.id] === "log";
  log?.addEventListener("change", () => {
    kept[figure.id] = log.checked ? "log" : "linear";
    show(figure, log.checked);
  });
  show(figure, log?.checked ?? false);
}

// Reload when the server has another version, but not while the pointer is on a chart.
if (version) {
  setInterval(async () => {
    const answer = await fetch("version").catch(() => null);  // the server has ended
    const isNew = answer?.ok && (await answer.text()) !== version;
    if (isNew && !document.querySelector("figure:hover")) location.reload();
  }, 2000);
}

// A click on a heading sorts a table by that column, numbers as numbers.
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
