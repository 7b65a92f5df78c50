  // The map of layers is one tab stop; the arrow keys walk its cells, a row below is as many cells on as there are layers.
  const cellsOf = (map) => [...map.querySelectorAll("[data-cell]")];
  document.addEventListener("click", ({ target }) => {
    const cell = target.closest?.("[data-cell]");
    if (!cell) return;
    for (const other of cellsOf(cell.parentElement)) other.setAttribute("aria-pressed", other === cell);
    write("#decide-cell", JSON.stringify({ cell: Number(cell.dataset.cell), at: performance.now() }));
  });
  document.addEventListener("keydown", (event) => {
    const cell = event.target.closest?.("[data-cell]");
    const map = cell?.parentElement;
    const row = Number(map && getComputedStyle(map).getPropertyValue("--layers"));
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row }[event.key];
    if (!cell || !step) return;
    const cells = cellsOf(map);
    const next = cells[cells.indexOf(cell) + step];
    if (!next) return;
    event.preventDefault();
    for (const other of cells) other.tabIndex = other === next ? 0 : -1;
    next.focus();
  });
