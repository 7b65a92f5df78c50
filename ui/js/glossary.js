  // A word's meaning below it, for the pointer and for the focus; Escape puts it away.
  const explain = (word) => {
    const box = document.getElementById("meaning");
    const text = word && document.querySelector(`#glossary [data-means="${CSS.escape(word.dataset.term)}"]`)?.textContent;
    if (!box) return;
    box.hidden = !text;
    document.querySelector("[aria-describedby=meaning]")?.removeAttribute("aria-describedby");
    if (!text) return;
    box.textContent = text;
    word.setAttribute("aria-describedby", "meaning");
    const at = word.getBoundingClientRect();
    box.style.left = `${Math.max(8, Math.min(at.left, innerWidth - box.offsetWidth - 8))}px`;
    const below = at.bottom + 6 + box.offsetHeight < innerHeight;
    box.style.top = `${below ? at.bottom + 6 : at.top - 6 - box.offsetHeight}px`;
  };
  for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, ({ target }) => explain(target.closest?.("[data-term]") ?? null));
  document.addEventListener("focusout", () => explain(null));
  document.addEventListener("keydown", ({ key }) => key === "Escape" && explain(null));
  addEventListener("scroll", () => explain(null), { capture: true, passive: true });
