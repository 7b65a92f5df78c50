  // What the page around them gives words.js and replay.js: in a frame nothing else follows the token that is selected.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => dark.matches;
  const framed = document.getElementById("frame-data");
  const read = readAlong(framed.textContent);
  const off = new Set();
  const figuresNow = () => read;
  const tokenSelected = () => window.kvq.token;
  const select = () => {};
  window.kvq = {
    token: framed.dataset.token,
    mark: (token) => {
      window.kvq.token = String(token);
      renderReading();
      follow();
    },
  };
  const words = document.querySelector(".reading-text");
  const saidOf = document.getElementById("said");
  const whole = saidOf.textContent;
  // Of a text that scrolls, what is written now stays in sight.
  const follow = () => {
    const next = words.querySelector(".to-come") ?? words.lastElementChild;
    words.scrollTop = next.offsetTop - words.clientHeight + 60;
  };
  // A word says what is read of it under the pointer, on a tap and, with the arrow keys, one after the other.
  const sayWord = (part) => {
    for (const other of words.querySelectorAll(".pointed")) if (other !== part) other.classList.remove("pointed");
    part?.classList.add("pointed");
    saidOf.textContent = part?.title || whole;
  };
  const walk = (by) => {
    const told = [...words.children].filter(({ title }) => title);
    if (!told.length) return;
    const next = told[Math.min(Math.max(told.findIndex((part) => part.matches(".pointed")) + by, 0), told.length - 1)];
    sayWord(next);
    next.scrollIntoView({ block: "nearest" });
  };
  for (const name of ["pointerover", "click"]) words.addEventListener(name, ({ target }) => sayWord(target.closest("i")));
  words.addEventListener("pointerleave", () => sayWord(null));
  document.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") return sayWord(null);
    if (event.target === words && step) walk(step);
    else if (document.body.dataset.view === "replay" && event.target === document.body && (step || event.key === " ")) {
      if (step) goTo(tokenNow() + step);
      else document.querySelector("[data-replay=play]").click();
    } else return;
    event.preventDefault();
  });
  dark.addEventListener("change", renderReading);
  lay(document.getElementById("reading-data"), framed.dataset.lane ? Number(framed.dataset.lane) : null);
  if (document.body.dataset.view === "replay") follow();
