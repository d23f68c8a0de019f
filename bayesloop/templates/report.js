"use strict";
// Sorting by a click on a heading: numbers (408M, 4.64e17, −1.2) as numbers, everything else as text.
const UNITS = { K: 1e3, M: 1e6, B: 1e9, T: 1e12 };
const numberOf = (text) => {
  const found = text.trim().replace("−", "-").match(/^([+-]?[\d.]+(?:e[+-]?\d+)?)([KMBT]?)$/i);
  return found ? Number(found[1]) * (UNITS[found[2]] || 1) : NaN;
};
const compare = (a, b) => {
  const [x, y] = [numberOf(a), numberOf(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
};
for (const table of document.querySelectorAll(".sortable table")) {
  const headings = [...table.querySelectorAll("thead th")];
  headings.forEach((heading, column) => {
    heading.setAttribute("aria-sort", "none");
    heading.tabIndex = 0;
    const sort = () => {
      const order = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      headings.forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", order > 0 ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => order * compare(a.cells[column].textContent, b.cells[column].textContent));
      table.tBodies[0].append(...rows);
    };
    heading.addEventListener("click", sort);
    heading.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}
