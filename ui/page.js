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
  // Figures arrive as JSON inside their places and are drawn when they come into sight, one at a time. Gradio rewrites
  // a view's HTML in place, so each drawing is kept by its place's id and put back before the browser paints.
  const kept = new Map();
  const dirty = new Set();
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const drawing = kept.get(target.id);
      if (!isIntersecting || !drawing) continue;
      if (drawing.json !== drawing.drawn) dirty.add(drawing);
      else if (drawing.node.clientWidth !== drawing.width) window.Plotly.Plots.resize(drawing.node);
    }
    draw();
  }, { rootMargin: "200px" });
  // First what is in sight, then the rest of the open view, then the others', so that their tabs open drawn.
  let drawing = false;
  const draw = () => {
    if (!drawing) setTimeout(next);
    drawing = true;
  };
  const next = () => {
    if (!window.Plotly) return setTimeout(next, 100);
    const inSight = dirty.size > 0;
    const waiting = [...kept.values()].filter(({ node, json, drawn }) => json !== drawn && node.isConnected);
    const [found] = inSight ? dirty : [waiting.find(({ node }) => isOpen(node)) ?? waiting[0]];
    drawing = Boolean(found);
    if (!found) return;
    render(found);
    setTimeout(next, inSight ? 0 : 60); // a pause in which the page answers whoever uses it
  };
  const isOpen = (element) => element.closest(".view")?.id === `view-${window.kvq.view}`;
  // A large heatmap comes as int8 codes; it is drawn in its own unit, so that a hover tells the value. -128 is blank.
  const widen = (trace, scale) => {
    const columns = Number(trace.z.shape.split(",")[1]);
    const value = (code) => (code === -128 ? NaN : code * scale);
    const values = Float32Array.from(atob(trace.z.bdata), (byte) => value((byte.charCodeAt(0) << 24) >> 24));
    trace.z = Array.from({ length: values.length / columns }, (_, row) => values.subarray(row * columns, (row + 1) * columns));
  };
  // On a phone a legend has a row a lane: the figure grows, so that its curves keep their room.
  const LEAST = 190;
  const heighten = async (node) => {
    const { _size: inner, legend, height } = node._fullLayout;
    if (!legend?._height || inner.h >= LEAST) return;
    await window.Plotly.relayout(node, { height: height + LEAST - inner.h + legend._height - legend._effHeight });
  };
  const render = async (drawing) => {
    const { node, json } = drawing;
    dirty.delete(drawing);
    if (drawing.drawn === json) return;
    drawing.drawn = json;
    const { data, layout, config } = JSON.parse(json);
    if (layout.meta?.scale) for (const trace of data) widen(trace, layout.meta.scale);
    await window.Plotly.react(node, data, { ...layout, autosize: true }, { ...config, responsive: true, displayModeBar: false });
    drawing.width = node.clientWidth;
    await heighten(node);
    node.parentElement?.classList.toggle("behind", drawing.json !== drawing.drawn);
    node.setAttribute("role", "img");
    node.setAttribute("aria-label", layout.meta?.label ?? "");
    node.removeListener("plotly_click", clicked);
    node.on("plotly_click", clicked);
    node.classList.toggle("picks", Boolean(layout.meta?.pick || data.some((trace) => trace.meta?.pick)));
  };
  const tabs = () => {
    for (const tab of document.querySelectorAll("[data-view]")) {
      const selected = tab.dataset.view === window.kvq.view;
      const panel = document.getElementById(tab.getAttribute("aria-controls"));
      if (panel && !panel.hasAttribute("role")) {
        panel.setAttribute("role", "tabpanel");
        panel.setAttribute("aria-label", tab.textContent);
      }
      if (tab.getAttribute("aria-selected") === String(selected)) continue;
      tab.setAttribute("aria-selected", selected);
      tab.tabIndex = selected ? 0 : -1;
    }
    const drawn = document.querySelector(`#view-${CSS.escape(window.kvq.view)} .plot`);
    for (const button of document.querySelectorAll("[data-image]")) button.hidden = !drawn;
  };
  // What was drawn for another selection than the one that is said is on its way: it is hidden, see style.css.
  const drawnFor = (where) => JSON.parse(document.querySelector(`${where} [data-at]`)?.dataset.at ?? "{}");
  const compare = () => {
    const now = drawnFor("#selected");
    for (const { id, classList } of document.querySelectorAll("#where .view")) {
      const drawn = drawnFor(`#${id} .words`);
      classList.toggle("behind", !drawn.run || Object.keys(drawn).some((name) => drawn[name] !== now[name]));
    }
  };
  // A step of the tour: its words come into sight, then its figure below them, once it is drawn for the step. Where the
  // words do not stay in sight the figure waits for its button.
  let step = null;
  let pending = null;
  const tour = () => {
    const learn = document.getElementById("learn");
    const button = learn?.checkVisibility() && learn.querySelector("[data-figure]");
    if (!button) return;
    const stays = getComputedStyle(learn).position === "sticky";
    document.documentElement.style.setProperty("--learn", stays ? `${learn.offsetHeight}px` : "0px");
    if (step !== button.dataset.step) {
      if (step === null) setTimeout(() => learn.scrollIntoView({ block: "start" }), 60);
      step = button.dataset.step;
      pending = stays ? button.dataset.figure : null;
    }
    const place = pending && document.getElementById(`plot-${pending}`);
    if (!place || !isOpen(place) || place.closest(".view.behind")) return;
    setTimeout(show, 120, pending);
    pending = null;
  };
  // It stays there while what is above it grows, until somebody scrolls or presses anything.
  let anchor = null;
  const hold = () => anchor && document.getElementById(`plot-${anchor}`)?.closest(".slot").scrollIntoView({ block: "start" });
  const show = (figure) => {
    anchor = figure;
    hold();
  };
  new ResizeObserver(hold).observe(document.body);
  const release = () => {
    anchor = null;
  };
  for (const kind of ["wheel", "touchmove", "pointerdown", "keydown"]) addEventListener(kind, release, { capture: true, passive: true });
  // The editor opens at its lane, which comes into sight with it; whoever opened it goes on in it.
  let entering = false;
  let revision = null;
  const enter = () => {
    const editor = document.querySelector("#editor [data-revision]");
    if (!editor || editor.dataset.revision === revision) return;
    revision = editor.dataset.revision;
    if (!entering) return;
    entering = false;
    document.getElementById("in-lane-method")?.focus({ preventScroll: true });
    editor.scrollIntoView({ block: "nearest" });
    document.querySelector(".lane-row.open")?.scrollIntoView({ block: "nearest" });
  };
  const arrange = () => {
    tabs();
    compare();
    tour();
    enter();
    if (focus && document.activeElement === document.body) document.getElementById(focus)?.focus({ preventScroll: true });
    for (const place of document.querySelectorAll("#where .plot")) {
      const json = place.firstElementChild?.textContent;
      if (!json) continue;
      const drawing = kept.get(place.id) ?? { node: document.createElement("div") };
      kept.set(place.id, drawing);
      if (drawing.node.parentElement !== place) place.append(drawing.node);
      place.classList.toggle("behind", json !== drawing.drawn);
      if (drawing.json === json) continue;
      drawing.json = json;
      seen.unobserve(place); // observed anew it is told of at once, in sight or not
      seen.observe(place);
    }
  };
  new MutationObserver(arrange).observe(document.body, { subtree: true, childList: true, characterData: true });

  // The lane editor is plain HTML. All that was changed in it since it was opened is told with every change: of several
  // in quick succession Gradio hands on the last.
  let edits = { uid: null, values: {} };
  let focus = null;
  const tell = (action) => write("#lanes-sent", JSON.stringify({ ...edits, do: null, lane: null, ...action, at: performance.now() }));
  const valueOf = (input) => {
    if (input.type === "checkbox") return input.checked;
    if (input.tagName === "SELECT") return JSON.parse(input.value);
    if (input.type !== "number") return input.value;
    return input.value === "" ? null : Number(input.value);
  };
  document.addEventListener("input", ({ target }) => {
    const editor = target.closest?.("[data-uid]");
    if (!editor || !target.dataset.place) return;
    const { uid, revision } = editor.dataset;
    if (edits.revision !== revision) edits = { uid: Number(uid), revision, values: {} };
    delete edits.values[target.dataset.place]; // the last one changed comes last
    edits.values[target.dataset.place] = valueOf(target);
    focus = target.id;
    tell({});
  });

  document.addEventListener("pointerdown", () => (focus = null), true);
  // A character of several tokens stands for all of them; a click selects the first, the arrow keys walk them.
  const numbers = (element) => element.dataset.t.split(" ").map(Number);
  const select = (token) => send({ token });
  document.addEventListener("click", (event) => {
    const token = event.target.closest?.("[data-t]");
    if (token) select(numbers(token)[0]);
    const suggest = event.target.closest?.("[data-suggest]");
    if (suggest) {
      write("#suggest", `${suggest.dataset.suggest} ${performance.now()}`);
      suggest.disabled = true;
      suggest.textContent = "Added to the lanes; press Run";
      document.getElementById("lanes")?.scrollIntoView({ block: "center", behavior: "smooth" });
    }
    const button = event.target.closest?.("[data-do]");
    if (button) {
      const { do: action, lane } = button.dataset;
      const closes = action === "close" || button.ariaExpanded === "true";
      focus = closes ? document.querySelector(".lane-row.open")?.id : action === "remove" ? "add-lane" : "in-lane-method";
      entering = action === "duplicate" || (action === "open" && !closes);
      tell({ do: action, lane: Number(lane) || null });
    }
    if (event.target.closest?.("#add-lane")) entering = true;
    const figure = event.target.closest?.("[data-figure]");
    if (figure) show(figure.dataset.figure);
    const tab = event.target.closest?.("[data-view]");
    if (tab) {
      window.kvq.open(tab.dataset.view);
      // Told after it is on screen: Gradio keeps the browser busy for a while with any event.
      requestAnimationFrame(() => setTimeout(() => write("#open-view", tab.dataset.view)));
    }
    const image = event.target.closest?.("[data-image]");
    if (image) images(image.dataset.image);
  });
  // The page's base address would take a link to a part of it away from the run that is shown.
  document.addEventListener("click", (event) => {
    const part = document.getElementById(event.target.closest?.('header nav a[href^="#"]')?.hash.slice(1) ?? "");
    if (!part) return;
    event.preventDefault();
    part.tabIndex = -1;
    part.focus({ preventScroll: true });
    part.scrollIntoView({ block: "start" });
  });
  // Gradio looks at a key after the focus has gone, and opens the dropdown again that was left with it.
  document.addEventListener("keydown", (event) => {
    if (event.key === "Tab" && event.target.matches?.("[role=combobox]")) event.stopPropagation();
  }, true);
  // One tab stop for the views; the arrow keys walk them.
  document.addEventListener("keydown", (event) => {
    const tab = event.target.closest?.("[data-view]");
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!tab || !step) return;
    event.preventDefault();
    const tabs = [...tab.parentElement.children];
    const next = tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length];
    next.focus();
    next.click();
  });
  // One tab stop a text; the arrow keys walk its tokens.
  document.addEventListener("keydown", (event) => {
    const text = event.target.closest?.("[data-tokens]");
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!text || !step) return;
    const parts = [...text.querySelectorAll("[data-t]")].filter((element) => element.offsetParent);
    const tokens = parts.flatMap((element) => numbers(element).map((number) => ({ number, element })));
    const now = tokens.findIndex(({ number }) => number === Number(window.kvq.token ?? NaN));
    const next = tokens[Math.min(tokens.length - 1, Math.max(0, now + step))];
    if (!next) return;
    event.preventDefault();
    focus = text.id; // the server writes the text anew
    window.kvq.mark(next.number);
    next.element.scrollIntoView({ block: "nearest", inline: "nearest" });
    select(next.number);
  });

  const images = async (format) => {
    const run = new URLSearchParams(location.search).get("run") ?? "run";
    for (const place of document.querySelectorAll("#where .plot")) {
      if (!isOpen(place)) continue;
      const drawing = kept.get(place.id);
      await render(drawing); // those below the fold wait for this
      const { width, height } = drawing.node.getBoundingClientRect();
      const filename = `${run}-${place.id.slice(5)}`;
      await window.Plotly.downloadImage(drawing.node, { format, width, height, scale: format === "png" ? 2 : 1, filename });
    }
  };
  // What stays in sight while the page scrolls; style.css keeps what is scrolled to clear of it.
  const staying = new ResizeObserver((sizes) => {
    for (const { target } of sizes) document.documentElement.style.setProperty(`--${target.id}`, `${target.offsetHeight}px`);
  });
  for (const id of ["header", "launch"]) staying.observe(document.getElementById(id));
  const marks = document.head.appendChild(document.createElement("style"));
  const staged = document.head.appendChild(document.createElement("style"));
  const opened = document.head.appendChild(document.createElement("style"));
  window.kvq = {
    stage: (text) => {
      const parts = { answers: "#answers", results: "#answers, #results" }[text];
      staged.textContent = parts ? `${parts} { display: flex !important; }` : "";
    },
    view: "verdicts",
    open: (view) => {
      window.kvq.view = view;
      opened.textContent = `#view-${CSS.escape(view)} { position: static !important; height: auto !important; overflow: visible !important; visibility: visible !important; }`;
      tabs();
      tour();
    },
    token: null,
    mark: (token) => {
      window.kvq.token = String(token);
      marks.textContent = Number.isInteger(Number(token)) ? `[data-t~="${Number(token)}"] { outline: 2px solid var(--accent); outline-offset: 0; }` : "";
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
  window.kvq.open(window.kvq.view);
}
