() => {
  // A click in a figure or on a token selects what it stands for; the server answers by moving the controls.
  const write = (where, text) => {
    const box = document.querySelector(`${where} :is(textarea, input)`);
    if (!box) return;
    box.value = text; // never twice the same, so that it is an input
    box.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const send = (pick) => write("#pick", JSON.stringify({ ...pick, at: performance.now() }));
  const clicked = (event) => {
    const point = event.points?.[0];
    const plot = event.event?.target?.closest?.(".js-plotly-plot");
    const meta = point && { ...plot?.layout?.meta, ...(point.fullData ?? point.data)?.meta };
    if (!meta?.pick) return;
    const pick = {};
    for (const [name, source] of Object.entries(meta.pick)) {
      const value = typeof source === "number" ? source : point[source];
      if (Number.isFinite(Number(value))) pick[name] = Number(value);
    }
    if (Object.keys(pick).length) send(pick);
  };
  const describe = (plot) => {
    const label = plot.layout?.meta?.label;
    if (!label || plot.getAttribute("aria-label") === label) return;
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", label);
  };
  document.addEventListener("pointerover", (event) => {
    const plot = event.target.closest?.(".js-plotly-plot");
    if (!plot?.on) return;
    plot.removeListener("plotly_click", clicked); // a figure drawn anew has lost its listeners
    plot.on("plotly_click", clicked);
    plot.classList.toggle("picks", Boolean(plot.layout?.meta?.pick || plot.data?.some((t) => t.meta?.pick)));
  });
  new MutationObserver(() => document.querySelectorAll("#where .js-plotly-plot").forEach(describe))
    .observe(document.body, { subtree: true, childList: true });

  const select = (token) => send({ token: Number(token.dataset.t) });
  document.addEventListener("click", (event) => {
    const token = event.target.closest?.("[data-t]");
    if (token) select(token);
    const suggest = event.target.closest?.("[data-suggest]");
    if (suggest) {
      write("#suggest", `${suggest.dataset.suggest} ${performance.now()}`);
      suggest.disabled = true;
      suggest.textContent = "Added to the lanes; press Run";
      document.getElementById("lanes")?.scrollIntoView({ block: "center", behavior: "smooth" });
    }
    const image = event.target.closest?.("[data-image]");
    if (image) images(image.dataset.image);
  });
  // One tab stop a text; the arrow keys walk its tokens.
  document.addEventListener("keydown", (event) => {
    const text = event.target.closest?.("[data-tokens]");
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!text || !step) return;
    const tokens = [...text.querySelectorAll("[data-t]")].filter((t) => t.offsetParent);
    const now = tokens.findIndex((t) => t.dataset.t === window.kvq.token);
    const next = tokens[Math.min(tokens.length - 1, Math.max(0, now + step))];
    if (!next) return;
    event.preventDefault();
    window.kvq.mark(next.dataset.t);
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
    select(next);
  });

  const images = (format) => {
    const plots = [...document.querySelectorAll("#where .js-plotly-plot")].filter((plot) => plot.offsetParent);
    const run = new URLSearchParams(location.search).get("run") ?? "run";
    plots.forEach((plot, at) => {
      const name = plot.closest("[id^=plot-]")?.id.slice(5) ?? `figure-${at}`;
      const { width, height } = plot.getBoundingClientRect();
      window.Plotly.downloadImage(plot, { format, width, height, scale: format === "png" ? 2 : 1, filename: `${run}-${name}` });
    });
  };
  const marks = document.head.appendChild(document.createElement("style"));
  window.kvq = {
    token: null,
    mark: (token) => {
      window.kvq.token = String(token);
      marks.textContent = Number.isInteger(Number(token)) ? `[data-t="${Number(token)}"] { outline: 2px solid var(--accent); outline-offset: 0; }` : "";
    },
    save: (text, name) => {
      if (!text || !name) return;
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type: name.endsWith("json") ? "application/json" : "text/csv" }));
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    },
  };
}
