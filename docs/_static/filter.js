// Long tables get a search field and, for columns of a few words, a list to choose from.
const LONG = 15, FEW = ["paper", "figure", "standing", "verdict"];

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
  bar.append(search, ...lists.map(each => each.list), count);
  (table.closest(".table-wrapper") || table).before(bar);
  update();
}

document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("article table").forEach(filterable));
