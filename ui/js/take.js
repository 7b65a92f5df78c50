  // One figure is taken away by its own menu: as an image, drawn here or by picture.js; as numbers, which the server writes; or as code
  // that embeds it elsewhere.
  const addressOf = ({ embed, selected, read: words }) => {
    const root = window.gradio_config?.root ?? location.origin;
    const { layer, head, token } = drawnFor("#selected");
    // Where the replay stands, which the selection follows when it rests.
    const at = selected === undefined ? "" : `&at=${layer}.${head}.${words === undefined ? token : tokenNow()}`;
    const lane = words === undefined ? "" : `&lane=${encodeURIComponent(readingLane().label)}`;
    return `${root}/embed?run=${document.querySelector("#legend [data-run]")?.dataset.run ?? ""}&view=${embed}${at}${lane}`;
  };
  // What a frame shows is as high as it is drawn: once out of sight, so that nothing of it is cut.
  const frame = async (asked, title) => {
    const src = addressOf(asked);
    const answer = await fetch(src);
    if (!answer.ok) throw new Error(answer.status);
    const drawn = Object.assign(document.createElement("iframe"), { width: FRAME, height: 1, srcdoc: await answer.text() });
    drawn.style.cssText = "position: fixed; visibility: hidden; border: 0";
    await new Promise((loaded) => {
      drawn.onload = loaded;
      document.body.append(drawn);
    });
    const height = drawn.contentDocument.documentElement.scrollHeight;
    drawn.remove();
    return `<iframe src="${src}" title="${title.replaceAll('"', "&quot;")}" width="${FRAME}" height="${height}" loading="lazy" style="border:0"></iframe>`;
  };
  const copyFrame = async (button, menu) => {
    const [text, title] = [button.textContent, menu.parentElement.querySelector("h3").textContent];
    const told = await frame(button.dataset, title).then(copied).then((done) => (done ? "Copied" : "Not allowed to copy"), () => "Not drawn, try again");
    button.textContent = told;
    setTimeout(() => {
      button.textContent = text;
      menu.open = false;
    }, 2000);
  };
  // A frame on another site opens what everybody may open.
  document.addEventListener("toggle", ({ target }) => {
    const button = target.matches?.("details.figure-menu[open]") && target.querySelector("[data-embed]");
    if (!button) return;
    button.disabled = Boolean(document.querySelector("#share [data-private]"));
    button.textContent = button.disabled ? "Embed code: share the run first" : "Copy embed code";
  }, true);
  const takeFigure = async (menu, as) => {
    const name = menu.dataset.figureMenu;
    if (as === "csv" || as === "parquet") return write("#take", JSON.stringify({ figure: name, as, at: performance.now() }));
    if (menu.matches(READ)) return takePicture(menu, as);
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
    if (button.dataset.take === "embed") return copyFrame(button, menu);
    takeFigure(menu, button.dataset.take);
    menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && event.target.closest?.("details.figure-menu[open]");
    if (!menu) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
