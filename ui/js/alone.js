  // A run that is a file: what page.js and its neighbours give the parts before, where no server follows and every lane
  // is shown. What the address says of a span holds here, too.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => dark.matches;
  const ground = () => document.documentElement.classList.toggle("dark", isDark());
  const off = new Set();
  let focus = null; // of a text that is written anew: none is here
  const send = () => {};
  const drawInSight = () => {};
  const select = (token) => window.kvq.mark(token);
  window.kvq = { token: document.body.dataset.token, mark: markToken };
  ground();
  along();
  readWords();
  markToken(window.kvq.token);
  dark.addEventListener("change", () => {
    ground();
    if (read) paintStrips();
    if (reading) renderReading();
  });
  // Figures say what is under the pointer and, with the arrow keys, at one mark after the other; words the same.
  const saidOf = document.getElementById("word-said");
  document.querySelector(".reading-text")?.addEventListener("pointerover", ({ target }) => (saidOf.textContent = target.closest("i")?.title ?? ""));
  document.querySelector(".reading-text")?.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const words = [...event.currentTarget.children].filter(({ title }) => title);
    if (!step || !words.length) return;
    event.preventDefault();
    const now = words.findIndex((word) => word.matches(".pointed"));
    const next = words[Math.min(Math.max(now + step, 0), words.length - 1)];
    for (const word of words) word.classList.toggle("pointed", word === next);
    saidOf.textContent = next.title;
    next.scrollIntoView({ block: "nearest" });
  });
