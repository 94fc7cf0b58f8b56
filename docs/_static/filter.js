// Long tables get a search field and, for columns of a few words, a list to choose from. A click on a head sorts by that column.
const LONG = 15, FEW = ["paper", "figure", "standing", "verdict", "family"];
const UNITS = { k: 1e3, M: 1e6, G: 1e9 };

// The number that a cell begins with, as in "0.83 (0.7 to 0.9)" or "11.2 M"; cells without one come last.
function numberOf(text) {
  const found = text.trim().match(/^(-?[\d.,]+)(?: ([kMG]))?/);
  return found ? parseFloat(found[1].replace(/,/g, "")) * (UNITS[found[2]] || 1) : NaN;
}

function sortable(table, rows) {
  [...table.tHead.rows[0].cells].forEach((head, at) => {
    const button = document.createElement("button");
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1, words = row => row.cells[at].textContent.trim();
      const numbers = rows.some(row => !isNaN(numberOf(words(row))));
      const compared = (one, other) => {
        if (!numbers) return sign * words(other).localeCompare(words(one));  // names begin with A
        const [first, second] = [one, other].map(row => numberOf(words(row)));
        return isNaN(first) - isNaN(second) || sign * (first - second) || 0;
      };
      table.tBodies[0].append(...[...rows].sort(compared));
    });
  });
}

function filterable(table) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < LONG) return;
  const heads = [...table.tHead.rows[0].cells].map(cell => cell.textContent.trim());
  const bar = document.createElement("p");
  bar.className = "filter";
  const search = Object.assign(document.createElement("input"), { type: "search", placeholder: "Filter rows" });
  search.setAttribute("aria-label", "Filter rows");
  const lists = FEW.filter(name => heads.includes(name)).map(name => {
    const at = heads.indexOf(name), list = document.createElement("select");
    list.setAttribute("aria-label", name);
    const words = row => row.cells[at].textContent.split(":")[0].trim();
    list.append(new Option(`every ${name}`, ""), ...[...new Set(rows.map(words))].map(each => new Option(each, each)));
    return { list, words };
  });
  const count = document.createElement("span");
  const update = () => {
    const wanted = search.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !wanted.every(word => text.includes(word)) || lists.some(each => each.list.value && each.list.value !== each.words(row));
      shown += !row.hidden;
    }
    count.textContent = ` ${shown} of ${rows.length} rows`;
  };
  search.addEventListener("input", update);
  for (const each of lists) each.list.addEventListener("change", update);
  sortable(table, rows);
  bar.append(search, ...lists.map(each => each.list), count);
  (table.closest(".table-wrapper") || table).before(bar);
  update();
}

document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("article table").forEach(filterable));
