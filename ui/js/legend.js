  // Lanes are switched in one place, for all that is theirs: elements by data-of, traces by their meta. What is drawn
  // of a lane goes or comes in the next frame; then figures in sight close their rows and axes, and the others once
  // nobody has switched for a while, or when they come into sight.
  const off = new Set();
  const stressed = document.head.appendChild(document.createElement("style"));
  let run = null; // whose lanes they are
  let pointedRow = null; // that the pointer was moved to
  const stateOf = () => [...off].sort((one, other) => one - other).join(".");
  const rowOf = (element) => element?.closest?.("#legend li[data-of]");
  // By a class of each: for a sheet that changes the browser looks through the whole page. What the server writes anew is
  // without it, see page.js.
  const hideLanes = () => {
    for (const part of document.querySelectorAll("#right [data-of]")) part.classList.toggle("switched-off", off.has(Number(part.dataset.of)));
  };
  const apply = () => {
    hideLanes();
    for (const row of document.querySelectorAll("#legend li[data-of]")) {
      const on = !off.has(Number(row.dataset.of));
      row.classList.toggle("off", !on);
      row.querySelector("[role=switch]").setAttribute("aria-checked", on);
    }
    const all = document.querySelector("#legend [data-lanes=all]");
    if (all) all.hidden = !off.size;
    worstReady();
    switchWords();
  };
  // What has thousands of elements of a run with many lanes is left out of the frame where it is out of sight.
  const LARGE = ["answers", "score-table"];
  let spared = [];
  const spare = () => {
    for (const part of LARGE.map((id) => document.getElementById(id)).filter((part) => part && !inSight(part) && !spared.includes(part))) {
      const { width, height } = part.getBoundingClientRect();
      part.style.containIntrinsicSize = `${width}px ${height}px`;
      part.style.contentVisibility = "hidden";
      spared.push(part);
    }
  };
  const showSpared = () => {
    for (const part of spared) part.style.contentVisibility = part.style.containIntrinsicSize = "";
    spared = [];
  };
  const redraw = () => {
    apply();
    for (const [trace, lane] of traces()) trace.style.display = off.has(lane) ? "none" : "";
    restUntil = performance.now() + REST_MS;
    const mine = (awaitsFrame = Symbol());
    framed(() => {
      if (awaitsFrame !== mine) return; // another switch came meanwhile
      awaitsFrame = null;
      showSpared();
      drawInSight();
    });
  };
  // Once the next frame is on the screen.
  const framed = (work) => {
    if (document.hidden) return work();
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(work)));
  };
  // What is drawn of lanes in the figures there are: Plotly binds each to its trace.
  const traces = () =>
    [...document.querySelectorAll("#where .js-plotly-plot :is(g.trace, g.hm)")]
      .map((trace) => [trace, trace.__data__?.[0]?.trace?.meta?.lane])
      .filter(([, lane]) => Number.isInteger(lane));
  const flip = (at) => {
    if (!off.delete(at)) off.add(at);
    told();
  };
  // Alone, or all of them again where it is alone already.
  const solo = (at) => {
    const lanes = [...document.querySelectorAll("#legend li[data-of]")].map((row) => Number(row.dataset.of));
    const alone = lanes.every((lane) => (lane === at) !== off.has(lane));
    off.clear();
    if (!alone) for (const lane of lanes) if (lane !== at) off.add(lane);
    told();
  };
  const told = () => {
    spare();
    redraw();
    framed(() => window.kvqVisit?.remember("off", stateOf())); // a new address takes a frame's time
  };
  // The other lanes fade: what is drawn is left as it is, and no figure is drawn again.
  const emphasise = (at) => {
    stressed.textContent = at === null ? "" : `#right [data-of]:not([data-of="${at}"]) { opacity: .25; }`;
    for (const [trace, lane] of traces()) trace.style.opacity = at === null || lane === at ? "" : ".12";
  };
  // Another run, or other lanes of it, begin with all of them, but for those that the link leaves out.
  const lanes = () => {
    const legend = document.querySelector("#legend [data-run]");
    const now = legend ? `${legend.dataset.run} ${legend.dataset.drawn}` : null;
    if (now === run) return;
    run = now;
    emphasise((pointedRow = null));
    const address = new URLSearchParams(location.search);
    readOff((address.get("run") ?? legend?.dataset.run) === legend?.dataset.run ? address.get("off") : null);
  };
  const readOff = (asked) => {
    off.clear();
    const count = document.querySelectorAll("#legend li[data-of]").length;
    for (const at of asked?.split(".") ?? []) if (/^\d+$/.test(at) && Number(at) < count) off.add(Number(at));
    redraw();
  };
  document.addEventListener("click", (event) => {
    const at = event.target.closest?.("#legend [data-switch]")?.dataset.switch;
    if (at !== undefined) event.altKey ? solo(Number(at)) : flip(Number(at));
    if (event.target.closest?.("#legend [data-lanes=all]")) {
      off.clear();
      told();
    }
    const more = event.target.closest?.("#legend [data-add]");
    if (more) exchange(Number(more.dataset.add));
  });
  document.addEventListener("dblclick", (event) => {
    const row = rowOf(event.target);
    if (!row) return;
    off.delete(Number(row.dataset.of)); // both clicks before have switched it
    solo(Number(row.dataset.of));
  });
  document.addEventListener("keydown", (event) => {
    const row = rowOf(event.target);
    if (!row || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key.toLowerCase() === "s") solo(Number(row.dataset.of));
    const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    if (!next) return;
    event.preventDefault();
    next.querySelector("button").focus();
  });
  const stress = (row) => emphasise(row.classList.contains("off") ? null : Number(row.dataset.of));
  // A pointer that rests tells nothing: the form folds at a run's end, and a lane comes to lie where Run was pressed.
  document.addEventListener("pointermove", ({ target }) => {
    const row = rowOf(target);
    if (row && row !== pointedRow) stress(row);
    pointedRow = row;
  });
  document.addEventListener("focusin", ({ target }) => {
    const row = target.matches(":focus-visible") && rowOf(target);
    if (row) stress(row);
  });
  for (const kind of ["pointerout", "focusout"]) {
    document.addEventListener(kind, ({ target, relatedTarget }) => {
      const row = rowOf(target);
      if (row && !row.contains(relatedTarget)) emphasise((pointedRow = null));
    });
  }
  // Of a run with more lanes than are drawn together: one more, in place of the last.
  const exchange = (lane) => {
    const drawn = document.querySelector("#legend [data-drawn]").dataset.drawn.split(" ").map(Number);
    const shown = drawn.filter((_, at) => !off.has(at));
    const others = shown.length < drawn.length ? shown : drawn.slice(0, -1);
    framed(() => window.kvqVisit?.remember("off", "")); // after that of a switch just before
    write("#drawn", JSON.stringify({ lanes: [...others, lane], at: performance.now() }));
  };
