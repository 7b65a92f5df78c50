  // A click in a figure or on a token selects what it stands for; the server answers by moving the controls.
  const write = (where, text) => {
    const box = document.querySelector(`${where} :is(textarea, input)`);
    if (!box) return;
    box.value = text; // never twice the same, so that it is an input
    box.dispatchEvent(new Event("input", { bubbles: true }));
  };
  // Of picks that Gradio has not handed on yet it hands on the last one only: so each says again what those shortly before
  // it picked, part by part, until somebody moves a picker by hand.
  const PART_OF = { layer: "layer", head: "head", kv_head: "head", token: "token", step: "token", position: "token" };
  const AGAIN_MS = 3000;
  let recent = {}; // part -> { at, run, pick }
  const withRecent = (pick) => {
    const [now, run] = [performance.now(), drawnFor("#selected").run];
    recent = Object.fromEntries(Object.entries(recent).filter(([, found]) => found.run === run && now - found.at < AGAIN_MS));
    for (const part of new Set(Object.keys(pick).map((name) => PART_OF[name]))) {
      const own = Object.entries(pick).filter(([name]) => PART_OF[name] === part);
      if (part) recent[part] = { at: now, run, pick: Object.fromEntries(own) };
    }
    return Object.assign({}, pick, ...Object.values(recent).map((found) => found.pick)); // a channel is no part
  };
  document.addEventListener("input", ({ target }) => {
    if (target.closest?.("#pick-layer, #pick-head, #pick-token")) recent = {};
  });
  const send = (pick, where = "#pick") => {
    if (where === "#pick") awaitPick(pick);
    write(where, JSON.stringify({ ...(where === "#pick" ? withRecent(pick) : pick), at: performance.now() }));
  };
  const clicked = (event) => {
    const point = event.points?.[0];
    const plot = event.event?.target?.closest?.(".js-plotly-plot");
    const meta = point && { ...plot?.layout?.meta, ...(point.fullData ?? point.data)?.meta };
    if (meta?.opens) return openCard(meta.cells ? meta.cells[point.pointIndex[0]][point.pointIndex[1]] : drawnLanes()[meta.lane]);
    if (!meta?.pick) return;
    const pick = {};
    for (const [name, source] of Object.entries(meta.pick)) {
      const value = typeof source === "number" ? source : point[source];
      if (Number.isFinite(Number(value))) pick[name] = Number(value);
    }
    if (Object.keys(pick).length) send(pick, plot.closest("#study") ? "#study-pick" : "#pick");
  };
  // Figures arrive as JSON inside their places and are drawn when they come into sight, one at a time. Gradio rewrites
  // a view's HTML in place, so each drawing is kept by its place's id and put back before the browser paints.
  const kept = new Map();
  const dirty = new Set();
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const drawing = kept.get(target.id);
      if (!isIntersecting || !drawing) continue;
      if (stale(drawing)) dirty.add(drawing);
      else if (drawing.node.clientWidth !== drawing.width) window.Plotly.Plots.resize(drawing.node);
    }
    draw();
  }, { rootMargin: "200px" });
  // Of an older selection, or drawn with other lanes switched off, of other tokens, or for the other ground.
  const stale = ({ json, drawn, lanes, tokens, dark }) => json !== drawn || lanes !== stateOf() || tokens !== spanOf() || dark !== isDark();
  // First what is in sight, then the rest of the open view, then the others', so that their tabs open drawn.
  let drawing = false;
  let restUntil = 0; // until then what is out of sight waits
  let awaitsFrame = null; // the switch of a lane that is not on the screen yet: drawings wait for it
  let resting = null; // the timer of that
  const REST_MS = 500;
  const draw = () => {
    if (drawing && resting === null) return;
    clearTimeout(resting);
    resting = null;
    drawing = true;
    setTimeout(next);
  };
  const inSight = (node) => {
    const { top, bottom } = node.getBoundingClientRect();
    return bottom > 0 && top < innerHeight;
  };
  const drawInSight = () => {
    for (const found of kept.values()) if (stale(found) && isOpen(found.node) && inSight(found.node)) dirty.add(found);
    draw();
  };
  const next = () => {
    if (!window.Plotly) return setTimeout(next, 100);
    if (awaitsFrame) {
      drawing = false;
      return;
    }
    const seenFirst = dirty.size > 0;
    const rest = restUntil - performance.now();
    if (!seenFirst && rest > 0) {
      resting = setTimeout(() => {
        resting = null;
        next();
      }, rest);
      return;
    }
    const waiting = [...kept.values()].filter((drawing) => stale(drawing) && drawing.node.isConnected);
    const [found] = seenFirst ? dirty : [waiting.find(({ node }) => isOpen(node)) ?? waiting[0]];
    drawing = Boolean(found);
    if (!found) return;
    render(found);
    setTimeout(next, seenFirst ? 0 : 60); // a pause in which the page answers whoever uses it
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
    if (!stale(drawing)) return;
    if (drawing.drawn !== json) {
      drawing.figure = JSON.parse(json);
      const { data, layout } = drawing.figure;
      if (layout.meta?.scale) for (const trace of data) widen(trace, layout.meta.scale);
    }
    drawing.drawn = json;
    drawing.lanes = stateOf();
    drawing.tokens = spanOf();
    drawing.dark = isDark();
    const { data, layout, config } = onGround(spanned(filtered(drawing.figure)));
    // Gradients and clips are named within the page, for its address changes with what is looked at.
    await window.Plotly.react(node, data, { ...layout, autosize: true }, { ...config, responsive: true, displayModeBar: false, _baseUrl: "" });
    drawing.width = node.clientWidth;
    await heighten(node);
    if (node.parentElement) node.parentElement.style.minHeight = `${node._fullLayout.height}px`;
    node.parentElement?.classList.toggle("behind", drawing.json !== drawing.drawn);
    const follows = layout.meta?.span || layout.meta?.rate || data.some((trace) => trace.meta?.steps);
    node.parentElement?.classList.toggle("of-whole", Boolean(span) && !follows);
    node.setAttribute("role", "img");
    node.setAttribute("aria-label", layout.meta?.label ?? "");
    node.removeListener("plotly_click", clicked);
    node.on("plotly_click", clicked);
    node.removeAllListeners("plotly_selected");
    if (layout.meta?.span) node.on("plotly_selected", (found) => found && brushFigure(found, layout.meta.span));
    node.removeAllListeners("plotly_hover");
    if (layout.meta?.words) node.on("plotly_hover", (found) => sayWords(node, found.points?.[0], layout.meta.words));
    node.classList.toggle("picks", Boolean(layout.meta?.pick || layout.meta?.opens || data.some((trace) => trace.meta?.pick)));
  };
  // What is taken away says its lanes itself and has its ground: there is no legend nor card beside it.
  const named = ({ node }) => {
    const said = new Set();
    const layout = { ...node.layout, paper_bgcolor: getComputedStyle(document.body).getPropertyValue("--card").trim() };
    const data = node.data.map((trace) => {
      const lane = trace.meta?.lane;
      if (!Number.isInteger(lane) || trace.visible === false || node.layout.showlegend === false || said.has(lane)) return trace;
      said.add(lane);
      return { ...trace, showlegend: true };
    });
    return { data, layout };
  };
  const images = async (format, of) => {
    const run = new URLSearchParams(location.search).get(of ?? "run") ?? "run";
    for (const place of document.querySelectorAll(of ? `#${of} .plot` : "#where .plot")) {
      if (!of && !isOpen(place)) continue;
      const drawing = kept.get(place.id);
      await render(drawing); // those below the fold wait for this
      const { width, height } = drawing.node.getBoundingClientRect();
      const filename = `${run}-${place.id.slice(5)}`;
      await window.Plotly.downloadImage(named(drawing), { format, width, height, scale: format === "png" ? 2 : 1, filename });
    }
    for (const menu of of ? [] : document.querySelectorAll(`#where ${READ}`)) if (isOpen(menu)) await takePicture(menu, format);
  };
