  // One figure is taken away by its own menu: as an image, drawn here; as numbers, which the server writes; or as code
  // that embeds it elsewhere.
  const frame = (view, title) => {
    const root = window.gradio_config?.root ?? location.origin;
    const run = document.querySelector("#legend [data-run]")?.dataset.run ?? "";
    return `<iframe src="${root}/embed?run=${run}&view=${view}" title="${title.replaceAll('"', "&quot;")}" width="760" height="420" loading="lazy" style="border:0"></iframe>`;
  };
  const takeFigure = async (menu, as) => {
    const name = menu.dataset.figureMenu;
    if (as === "csv" || as === "parquet") return write("#take", JSON.stringify({ figure: name, as, at: performance.now() }));
    const drawing = kept.get(`plot-${name}`);
    if (!drawing) return;
    await render(drawing);
    const { width, height } = drawing.node.getBoundingClientRect();
    const run = document.querySelector("#legend [data-run]")?.dataset.run ?? "run";
    await window.Plotly.downloadImage(named(drawing), { format: as, width, height, scale: as === "png" ? 2 : 1, filename: `${run}-${name}` });
  };
  document.addEventListener("click", ({ target }) => {
    const button = target.closest?.("[data-take]");
    const menu = button?.closest("[data-figure-menu]");
    for (const open of document.querySelectorAll("details.figure-menu[open]")) {
      if (!open.contains(target)) open.open = false; // another one was opened, or the page was clicked
    }
    if (!menu) return;
    if (button.dataset.take !== "embed") {
      takeFigure(menu, button.dataset.take);
      menu.open = false;
      return;
    }
    const title = menu.parentElement.querySelector("h3").textContent;
    navigator.clipboard.writeText(frame(button.dataset.embed, title)).then(() => (button.textContent = "Copied"), () => (button.textContent = "Not allowed to copy"));
  });
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && event.target.closest?.("details.figure-menu[open]");
    if (!menu) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
