"use strict";
// Filters and sorts the table of episodes; an episode's section is shown with its row.
const table = document.getElementById("episodes");
const rows = table ? Array.from(table.tBodies[0].rows) : [];
const word = document.getElementById("word");
const choices = Array.from(document.querySelectorAll("select[data-column]"));
const shown = document.getElementById("shown");

function value(row, column) {
  const cell = row.cells[column];
  return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
}

function filter() {
  const wanted = word.value.toLowerCase();
  let count = 0;
  for (const row of rows) {
    const fits = row.textContent.toLowerCase().includes(wanted) &&
      choices.every((c) => c.value === "" || row.cells[Number(c.dataset.column)].textContent === c.value);
    row.hidden = !fits;
    const section = document.getElementById(row.dataset.episode);
    if (section) section.hidden = !fits;
    count += fits ? 1 : 0;
  }
  shown.textContent = String(count);
}

function sort(head) {
  const column = head.cellIndex;
  const down = head.dataset.order !== "down";
  for (const other of table.tHead.rows[0].cells) delete other.dataset.order;
  head.dataset.order = down ? "down" : "up";
  rows.sort((a, b) => {
    const x = value(a, column), y = value(b, column);
    const order = typeof x === "number" ? x - y : x.localeCompare(y);
    return down ? -order : order;
  });
  table.tBodies[0].append(...rows);
}

if (table) {
  word.addEventListener("input", filter);
  for (const choice of choices) choice.addEventListener("change", filter);
  for (const head of table.tHead.rows[0].cells) {
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(head); });
  }
}
