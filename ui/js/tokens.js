  // A character of several tokens stands for all of them; a click selects the first, the arrow keys walk them.
  const numbers = (element) => element.dataset.t.split(" ").map(Number);
  const marks = document.head.appendChild(document.createElement("style"));
  const markToken = (token) => {
    window.kvq.token = String(token);
    marks.textContent = Number.isInteger(Number(token)) ? `[data-t~="${Number(token)}"] { outline: 2px solid var(--accent); outline-offset: 0; }` : "";
    if (read) outline();
    if (reading) renderReading();
  };
  document.addEventListener("click", (event) => {
    const token = event.target.closest?.("[data-t]");
    if (token && event.shiftKey) reach(numbers(token)[0]);
    else if (token) select(numbers(token)[0]);
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
    if (event.shiftKey) spanStart ??= tokens[Math.max(0, now)].number;
    window.kvq.mark(next.number);
    next.element.scrollIntoView({ block: "nearest", inline: "nearest" });
    if (event.shiftKey) reach(next.number);
    else spanStart = null;
    select(next.number);
  });
