  // A step of the tour: its words come into sight, then its figure below them, ringed, once it is drawn for the step.
  // Where the words do not stay in sight the figure waits for its button.
  let step = null;
  let pending = null;
  const tour = () => {
    const learn = document.getElementById("learn");
    const now = learn?.checkVisibility() && learn.querySelector("[data-step]");
    ring(now ? now.dataset.figure : null);
    document.body.classList.toggle("touring", Boolean(now));
    toy();
    if (!now) {
      step = null;
      return;
    }
    const stays = getComputedStyle(learn).position === "sticky";
    document.documentElement.style.setProperty("--learn", stays ? `${learn.offsetHeight}px` : "0px");
    if (step !== now.dataset.step) {
      if (step === null) setTimeout(() => learn.scrollIntoView({ block: "start" }), 60);
      step = now.dataset.step;
      pending = stays ? now.dataset.figure : null;
    }
    const place = pending && document.getElementById(`plot-${pending}`);
    if (!place || !isOpen(place) || place.closest(".view.behind")) return;
    setTimeout(show, 120, pending);
    pending = null;
  };
  const ring = (figure) => {
    const slot = document.getElementById(`plot-${figure}`)?.closest(".slot");
    for (const other of document.querySelectorAll(".ringed")) if (other !== slot) other.classList.remove("ringed");
    slot?.classList.add("ringed");
  };
  // The one action of a step is ticked off when it has been tried.
  const tried = ({ target }) => {
    const now = document.querySelector("#learn [data-on]");
    if (now && target.closest?.(now.dataset.on)) now.querySelector(".tour-action").classList.add("tried");
  };
  for (const kind of ["click", "input", "pointerover", "keydown"]) {
    document.addEventListener(kind, (event) => {
      const pointed = kind !== "pointerover" || document.querySelector("#learn [data-on^='#plot-']");
      if (pointed && (kind !== "keydown" || event.key !== "Tab")) tried(event);
    }, true);
  }
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
