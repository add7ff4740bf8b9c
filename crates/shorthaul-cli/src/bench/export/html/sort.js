
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.querySelectorAll("thead th").forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const down = head.ariaSort !== "descending";
      for (const other of head.parentNode.children) other.ariaSort = null;
      head.ariaSort = down ? "descending" : "ascending";
      const key = row => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const order = (a, b) => key(a).localeCompare(key(b), "en", { numeric: false });
      const by = (a, b) => (isNaN(key(a) - key(b)) ? order(a, b) : key(a) - key(b));
      body.append(...[...body.rows].sort((a, b) => (down ? by(b, a) : by(a, b))));
    };
  });
}
