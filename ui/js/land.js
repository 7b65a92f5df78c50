  // Where an address or the header leads to: the part is opened where it is closed, and comes into sight.
  const goPart = (id, focuses = true) => {
    const part = document.getElementById(id);
    if (!part?.checkVisibility()) return false;
    part.querySelector(":scope > button.label-wrap:not(.open)")?.click();
    if (focuses) {
      part.tabIndex = -1;
      part.focus({ preventScroll: true });
    }
    part.scrollIntoView({ block: "start" });
    return true;
  };
  // What is drawn above a part later moves it: for some seconds, until somebody scrolls or types, it comes back.
  const stayAt = (id) => {
    const leave = new AbortController();
    const watch = new ResizeObserver(() => document.getElementById(id)?.scrollIntoView({ block: "start" }));
    leave.signal.addEventListener("abort", () => watch.disconnect());
    for (const kind of ["wheel", "touchstart", "keydown", "pointerdown"])
      addEventListener(kind, () => leave.abort(), { once: true, passive: true, signal: leave.signal });
    watch.observe(document.body);
    setTimeout(() => leave.abort(), 4000);
  };
  // Once, when the run that an address names is there: its view, or the part behind its #.
  let landed = false;
  const land = () => {
    if (landed) return;
    landed = true;
    const asked = new URLSearchParams(location.search);
    const part = location.hash.slice(1) || (asked.has("vs") ? "beside" : asked.has("view") ? "where" : "");
    if (part) setTimeout(() => goPart(part, false) && stayAt(part), 60);
  };
  // The length from which every lane quantizes something, in place of the one that is asked for. Its box is there once
  // the options were open.
  document.addEventListener("click", ({ target }) => {
    const tokens = target.closest?.("[data-new-tokens]")?.dataset.newTokens;
    if (!tokens) return;
    const box = () => document.querySelector("#max-new-tokens input[type=number]");
    const put = (tries) => {
      const found = box();
      if (!found) return tries && setTimeout(() => put(tries - 1), 50);
      found.value = tokens;
      for (const kind of ["input", "change", "blur"]) found.dispatchEvent(new Event(kind, { bubbles: true }));
    };
    if (!box()) document.querySelector("#options button")?.click();
    put(40);
  });
  // A lane is added to the run that is shown: where the form holds another comparison, it holds the run's first.
  const addLane = () => {
    const back = document.querySelector("#differs [data-form-back]");
    const add = () => document.getElementById("add-lane").click();
    writeForm(true);
    if (!back) return add();
    document.addEventListener("kvq-filled", () => setTimeout(add, 60), { once: true });
    back.click();
  };
