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
      const line = tab.parentElement; // on a phone it is swiped: the open view's name is in its middle
      if (selected) line.scrollLeft = tab.offsetLeft - line.offsetLeft - (line.clientWidth - tab.offsetWidth) / 2;
    }
    const drawn = document.querySelector(`#view-${CSS.escape(window.kvq.view)} :is(.plot, ${READ})`);
    for (const button of document.querySelectorAll("#where [data-image]")) button.hidden = !drawn;
  };
  // What was drawn for another selection than the one that is said is on its way: it is hidden, see style.css.
  const drawnFor = (where) => JSON.parse(document.querySelector(`${where} [data-at]`)?.dataset.at ?? "{}");
  // A selection that somebody moved is in the link; the one that a run or a step of the tour opens with is not.
  let said = null;
  let opening = null; // where the run was opened
  const place = (now) => {
    const at = `${now.layer}.${now.head}.${now.token}`;
    if (said?.run === now.run && said.at !== at && !new URLSearchParams(location.search).has("learn")) window.kvqVisit?.remember("at", at);
    if (now.run && said?.run !== now.run) opening = at;
    if (now.run) said = { run: now.run, at };
  };
  // What somebody chose and the server has not answered yet. Its answer to what was chosen before is late: it must not
  // take the page back.
  let awaited = null; // { run, token }
  const awaitPick = ({ token, step, position }) => {
    const next = token ?? (Number.isFinite(step) ? step + 1 : read && position >= read.prompt ? position - read.prompt : undefined);
    if (next === undefined) return;
    const there = awaited === null && document.querySelector("#pick-token input")?.value === String(next);
    awaited = there ? null : { run: drawnFor("#selected").run, token: next };
  };
  const isLate = (token) => awaited !== null && awaited.token !== Number(token) && awaited.run === drawnFor("#selected").run;
  document.addEventListener("input", ({ target }) => {
    if (target.closest?.("#pick-token")) awaited = null; // moved by hand
  });
  let awaitedView = null;
  const goView = (view) => {
    window.kvq.open(view);
    awaitedView = view;
    // Told after it is on screen: Gradio keeps the browser busy for a while with any event.
    requestAnimationFrame(() => setTimeout(() => {
      if (awaitedView !== view) return; // another one was chosen since
      if (document.querySelector("#open-view :is(textarea, input)")?.value === view) awaitedView = null;
      else write("#open-view", view);
    }));
  };
  const compare = () => {
    const now = drawnFor("#selected");
    if (awaited && (awaited.run !== now.run || awaited.token === now.token)) awaited = null;
    place(now);
    for (const { id, classList } of document.querySelectorAll("#where .view")) {
      const drawn = drawnFor(`#${id} .words`);
      classList.toggle("behind", !drawn.run || Object.keys(drawn).some((name) => drawn[name] !== now[name]));
    }
  };
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
  // A view that somebody points at, or comes to by the keyboard, is asked for before it is opened: once a selection.
  const POINTED_MS = 80; // a pointer that only passes asks for nothing
  let pointed = null;
  const wanted = new Map(); // view -> the selection it was asked for
  const askAhead = (name) => {
    const now = document.querySelector("#selected [data-at]")?.dataset.at;
    const missing = document.getElementById(`view-${name}`)?.classList.contains("behind");
    if (!now || !missing || name === window.kvq.view || wanted.get(name) === now) return;
    wanted.set(name, now);
    write("#ahead-view", `${name} ${performance.now()}`);
  };
  for (const kind of ["pointerover", "focusin"]) {
    document.addEventListener(kind, ({ target }) => {
      clearTimeout(pointed);
      const name = target.closest?.("[data-view]")?.dataset.view;
      if (name) pointed = setTimeout(() => askAhead(name), POINTED_MS);
    });
  }
