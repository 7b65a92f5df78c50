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
