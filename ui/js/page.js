  const arrange = () => {
    tabs();
    lanes();
    if (off.size) hideLanes();
    compare();
    tour();
    count();
    drafted();
    enter();
    turns();
    runHeard();
    nameOn();
    carry();
    along();
    readWords();
    if (opensCard !== null) toCard();
    if (focus && document.activeElement === document.body) goOnIn(document.getElementById(focus));
    for (const link of document.querySelectorAll("[data-place]")) {
      if (link.dataset.place === document.documentElement.dataset.at) link.setAttribute("aria-current", "page");
    }
    swipeable();
    for (const place of document.querySelectorAll(":is(#where, #study, #decide, #versus-figures) .plot")) {
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

  // Rows of figures that are swiped on a phone are scrolled by the arrow keys there.
  const phone = matchMedia("(max-width: 640px)");
  const swipeable = () => {
    for (const row of document.querySelectorAll(":is(#where, #study, #decide) .plots")) {
      const scrolls = phone.matches && row.children.length > 1;
      if (scrolls === row.hasAttribute("tabindex")) continue;
      const said = { tabindex: "0", role: "group", "aria-label": "Figures side by side" };
      for (const [name, value] of Object.entries(said)) scrolls ? row.setAttribute(name, value) : row.removeAttribute(name);
    }
  };
  phone.addEventListener("change", swipeable);

  // In one column what is selected, and what may help there, stand below the views in which one selects.
  const column = matchMedia("(max-width: 900px)");
  const settle = () => {
    const [where, legend, ...looked] = ["where", "legend", "selection", "acts"].map((id) => document.getElementById(id));
    (column.matches ? where : legend).after(...looked);
  };
  column.addEventListener("change", settle);
  settle();

  // The form as the server read it last, for the address.
  let formed = null;
  const drafted = () => {
    const form = document.querySelector("#differs [data-draft]")?.dataset.draft;
    if (form === undefined || form === formed) return;
    formed = form;
    window.kvqVisit?.write(form);
  };
  const select = (token) => send({ token });
  // Lanes ticked in the table of a run with many are drawn; without any the best are.
  const chosen = (button) => {
    const table = button.closest(".lane-table");
    const most = Number(button.dataset.draw); // none: the best are asked for
    const lanes = most ? [...table.querySelectorAll("input:checked")].map((box) => Number(box.value)) : [];
    const wrong = most && (!lanes.length || lanes.length > most);
    table.querySelector("[role=status]").textContent = wrong ? `${lanes.length} are chosen; choose 1 to ${most}.` : "";
    if (!wrong) write("#drawn", JSON.stringify({ lanes, at: performance.now() }));
  };
  document.addEventListener("click", (event) => {
    const suggest = event.target.closest?.("[data-suggest]");
    if (suggest) {
      write("#suggest", `${suggest.dataset.suggest} ${performance.now()}`);
      suggest.disabled = true;
      suggest.textContent = "Added to the lanes; press Run";
      writeForm(true);
      document.getElementById("lanes")?.scrollIntoView({ block: "center", behavior: "smooth" });
    }
    const draw = event.target.closest?.("[data-draw]");
    if (draw) chosen(draw);
    const remedy = event.target.closest?.("[data-remedy]");
    if (remedy) {
      write("#remedy", `${remedy.dataset.remedy} ${performance.now()}`);
      remedy.disabled = true;
      remedy.textContent = "Added";
    }
    const mended = event.target.closest?.("[data-mended]");
    if (mended) write("#mended", JSON.stringify({ file: mended.dataset.mended, at: performance.now() }));
    if (event.target.closest?.("[data-mend]")) document.getElementById("mend-run").click();
    if (event.target.closest?.("[data-look]")) document.getElementById("look-run").click();
    const button = event.target.closest?.("[data-do]");
    if (button) {
      const { do: action, lane } = button.dataset;
      const closes = action === "close" || button.ariaExpanded === "true";
      if (action === "switch") focus = button.id;
      else focus = closes ? document.querySelector(".lane-row.open")?.id : action === "remove" ? "add-lane" : "in-lane-method";
      entering = action === "duplicate" || (action === "open" && !closes);
      tell({ do: action, lane: Number(lane) || null });
      if (action.startsWith("rule")) edits = { uid: null, values: {} }; // the numbers of rules change
    }
    if (event.target.closest?.("#add-lane")) entering = true;
    if (event.target.closest?.("#run") && !event.detail) focus = "cancel"; // by the keyboard, which Run leaves
    if (event.target.closest?.("[data-lane-more]")) addLane();
    if (event.target.closest?.("[data-form-run]")) document.getElementById("run").click();
    if (event.target.closest?.("[data-form-back]")) write("#form-back", String(performance.now()));
    const forget = event.target.closest?.("[data-run-forget]")?.dataset.runForget;
    if (forget) {
      lists.runs.forget(forget);
      toldRun({ run: forget });
    }
    if (event.target.closest?.("[data-show]")) show(event.target.closest("[data-figure]").dataset.figure);
    const tab = event.target.closest?.("[data-view]");
    if (tab) {
      goView(tab.dataset.view);
      window.kvqVisit?.remember("view", tab.dataset.view, true);
    }
    const image = event.target.closest?.("[data-image]");
    if (image) images(image.dataset.image, image.closest("#study, #decide")?.id);
  });
  // The page's base address would take a link to a part of it away from the run that is shown.
  document.addEventListener("click", (event) => {
    const id = event.target.closest?.('header nav a[href^="#"]')?.hash.slice(1);
    if (id && goPart(id)) event.preventDefault();
  });
  // Gradio looks at a key after the focus has gone, and opens the dropdown again that was left with it.
  document.addEventListener("keydown", (event) => {
    if (event.key === "Tab" && event.target.matches?.("[role=combobox]")) event.stopPropagation();
  }, true);
  // What stays in sight while the page scrolls; style.css keeps what is scrolled to clear of it. Whatever grows around a
  // lane that has the focus, it goes on standing between the header and the card of Run, until somebody scrolls it away.
  let holding = false;
  const clear = (element) => {
    const { top, bottom } = element.getBoundingClientRect();
    const edge = (id) => document.getElementById(id).getBoundingClientRect();
    return top >= Math.max(edge("header").bottom, edge("launch").bottom) && bottom <= innerHeight;
  };
  const staying = new ResizeObserver((sizes) => {
    for (const { target } of sizes) {
      if (["header", "launch"].includes(target.id)) document.documentElement.style.setProperty(`--${target.id}`, `${target.offsetHeight}px`);
    }
    const edited = holding && document.querySelector("#lanes :focus-visible");
    if (edited && !clear(edited)) edited.scrollIntoView({ block: "nearest" });
  });
  for (const part of [document.getElementById("header"), ...document.getElementById("left").children]) staying.observe(part);
  document.addEventListener("focusin", () => (holding = true));
  for (const kind of ["wheel", "touchmove", "pointerdown"]) addEventListener(kind, () => (holding = false), { capture: true, passive: true });
  // The form is folded while one reads; whether it was open outlasts the page.
  const FORM = "kvq-form-open";
  let ran = false;
  const stored = (name) => {
    try {
      return localStorage.getItem(name);
    } catch {
      return null; // forbidden: it begins folded
    }
  };
  const writeForm = (open) => {
    document.body.classList.toggle("writing", open);
    try {
      localStorage.setItem(FORM, open ? "1" : "0");
    } catch {} // full or forbidden: the page works without
  };
  // What is shared is what one sees: the run with its view, selection, lanes and form. It is copied at once where others
  // can open it.
  const SEEN = ["view", "at", "off", "span", "form"];
  const share = async (open) => {
    document.body.classList.toggle("sharing", open);
    document.querySelector("[data-share]")?.setAttribute("aria-expanded", open);
    const box = document.querySelector("#share textarea");
    if (!open || !box) return;
    const link = new URL(box.value);
    const here = new URLSearchParams(location.search);
    for (const name of SEEN) link.searchParams.delete(name);
    for (const name of SEEN.filter((name) => here.has(name))) link.searchParams.set(name, here.get(name));
    box.value = link.href;
    if (!document.querySelector("#private")?.checkVisibility()) box.closest(".copybox").querySelector(".copy").click();
  };
  document.addEventListener("click", ({ target }) => {
    const form = target.closest?.("[data-form]")?.dataset.form;
    if (form) {
      writeForm(form === "open");
      window.kvqVisit?.focus(document.querySelector(form === "open" ? "#prompt textarea" : "[data-form=open]"));
      document.getElementById("left").scrollIntoView({ block: "nearest" });
    }
    if (target.closest?.("[data-share]")) {
      share(!document.body.classList.contains("sharing"));
      if (document.body.classList.contains("sharing")) document.getElementById("sharing").scrollIntoView({ block: "nearest" });
    }
  });
  // Another ground, by the visitor's system or Gradio's settings: what is in sight is drawn again, the rest when it comes.
  let ground = isDark();
  new MutationObserver(() => {
    if (ground === isDark()) return; // another class
    ground = isDark();
    drawInSight();
  }).observe(document.body, { attributeFilter: ["class"] });
  const staged = document.head.appendChild(document.createElement("style"));
  const opened = document.head.appendChild(document.createElement("style"));
  const TYPES_OF = { json: "application/json", csv: "text/csv", parquet: "application/vnd.apache.parquet", svg: "image/svg+xml", png: "image/png" };
  window.kvq = {
    // As an address says, of the run that is shown: on the way back to a view, or forth.
    look: (asked) => {
      const view = asked.get("view") ?? document.querySelector("[data-view]")?.dataset.view;
      if (view && view !== window.kvq.view) goView(view);
      const at = asked.get("at") ?? opening;
      const [layer, head, token] = at?.split(".").map(Number) ?? [];
      if (at) send({ layer, head, token }); // the one that is said may be left already
      readOff(asked.get("off"));
      if (read && asked.get("span") !== (spanOf() || null)) readSpan(asked.get("span"));
    },
    stage: (text) => {
      const parts = { answers: "#answers", home: "#answers", results: "#answers, #results" }[text];
      staged.textContent = parts ? `${parts} { display: flex !important; }` : "";
      document.body.dataset.stage = text;
      // A form that somebody is in stays open when a run ends; otherwise the run is what is read now.
      if (text === "results") land();
      if (text === "form") writeForm(true);
      else if (text === "results" && ran && !document.activeElement?.matches("#left :is(textarea, input, select, .methods *)")) writeForm(false);
      if (ran && text === "results" && focus === "cancel") focus = "answer-said";
      ran = text === "answers";
      if (ran && span) unbrush(); // they were of the run before
    },
    view: "verdicts",
    open: (view) => {
      window.kvq.view = view;
      opened.textContent = `#view-${CSS.escape(view)} { position: static !important; height: auto !important; overflow: visible !important; visibility: visible !important; content-visibility: visible !important; }`;
      tabs();
      tour();
    },
    token: null,
    mark: (token) => {
      markToken(token);
    },
    lists,
    pick: (pick) => send(pick),
    // As the server says, unless somebody is on the way to another one.
    told: (token) => {
      if (moving() || isLate(token)) return;
      awaited = null;
      window.kvq.mark(token);
    },
    toldView: (view) => {
      if (awaitedView !== null && awaitedView !== view) return;
      awaitedView = null;
      window.kvq.open(view);
    },
    save: (text, name) => {
      if (!text || !name) return;
      const link = document.createElement("a");
      const bytes = /\.(parquet|png)$/.test(name) ? Uint8Array.from(atob(text), (byte) => byte.charCodeAt(0)) : text;
      link.href = URL.createObjectURL(new Blob([bytes], { type: TYPES_OF[name.split(".").pop()] }));
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    },
  };
  window.kvq.open(window.kvq.view);
  writeForm(["c", "preset"].some((name) => new URLSearchParams(location.search).has(name)) || stored(FORM) === "1");
  // The run of an empty page came with the page itself.
  if (!["run", "vs", "c", "preset", "learn", "study", "decide", "verify"].some((name) => new URLSearchParams(location.search).has(name)) && document.querySelector("#answer section")) window.kvq.stage("home");
  document.body.classList.toggle("beside", new URLSearchParams(location.search).has("vs"));
