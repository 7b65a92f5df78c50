  // The editor opens at its lane, which comes into sight with it; whoever opened it goes on in it.
  let entering = false;
  let revision = null;
  const enter = () => {
    const editor = document.querySelector("#editor [data-revision]");
    if (!editor || editor.dataset.revision === revision) return;
    revision = editor.dataset.revision;
    changeAgain(editor);
    if (!entering) return;
    entering = false;
    document.getElementById("in-lane-method")?.focus({ preventScroll: true });
    editor.scrollIntoView({ block: "nearest" });
    document.querySelector(".lane-row.open")?.scrollIntoView({ block: "nearest" });
  };
  // The lane editor is plain HTML. All that was changed in it since it was opened, or since another method was chosen, is
  // told with every change.
  let edits = { uid: null, values: {} };
  let focus = null;
  let toldAt = 0;
  const tell = (action) => {
    toldAt = performance.now();
    write("#lanes-sent", JSON.stringify({ ...edits, do: null, lane: null, ...action, at: toldAt }));
  };
  const isHeard = () => Number(document.getElementById("lanes-heard").textContent) >= toldAt;
  // An editor that comes anew, for another method has other controls, is given what was changed while it came.
  const changeAgain = (editor) => {
    const { uid, revision: now } = editor.dataset;
    if (edits.uid !== Number(uid) || isHeard()) return;
    for (const input of editor.querySelectorAll("[data-place]")) {
      const value = edits.values[input.dataset.place];
      if (value === undefined) continue;
      if (input.type === "checkbox") input.checked = value;
      else input.value = input.tagName === "SELECT" ? JSON.stringify(value) : (value ?? "");
    }
    for (const picker of editor.querySelectorAll("details.methods")) showMethod(picker);
    edits.revision = now;
    tell({});
  };
  // A form that was filled has other lanes under the same numbers.
  document.addEventListener("kvq-filled", () => (edits = { uid: null, values: {} }));
  // What was changed in a lane just before Run is part of it: Run waits until the server has read that, or a while.
  const HEARD_MS = 10000;
  let runWaits = null; // the timer of that
  const pressRun = () => {
    clearTimeout(runWaits);
    runWaits = null;
    document.getElementById("run").click();
  };
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("#run") || isHeard() || performance.now() - toldAt > HEARD_MS) return;
    event.stopImmediatePropagation();
    runWaits ??= setTimeout(pressRun, HEARD_MS);
  }, true);
  const runHeard = () => {
    if (runWaits !== null && isHeard()) pressRun();
  };
  const valueOf = (input) => {
    if (input.type === "checkbox") return input.checked;
    if (input.tagName === "SELECT") return JSON.parse(input.value);
    if (input.type !== "number") return input.value;
    return input.value === "" ? null : Number(input.value);
  };
  document.addEventListener("input", ({ target }) => {
    const editor = target.closest?.("[data-uid]");
    if (!editor || !target.dataset.place) return;
    const { uid, revision } = editor.dataset;
    if (edits.revision !== revision) edits = { uid: Number(uid), revision, values: {} };
    if (target.dataset.place.endsWith("method")) edits.values = {}; // they were of the one before
    delete edits.values[target.dataset.place]; // the last one changed comes last
    edits.values[target.dataset.place] = valueOf(target);
    focus = target.id;
    tell({});
  });

  document.addEventListener("pointerdown", () => (focus = null), true);
  document.addEventListener("focusin", ({ target }) => {
    if (target.dataset.place && target.closest("[data-uid]")) focus = target.id;
  });
  // What came anew under whoever was in it: what one types goes on there, behind what was typed, or in place of what the
  // Tab key marks.
  const goOnIn = (place) => {
    place?.focus({ preventScroll: true });
    if (!place?.matches("[data-place]:is([type=number], [type=text])")) return;
    if (edits.values[place.dataset.place] === undefined) return place.select();
    const { value } = place;
    place.value = "";
    place.value = value; // the caret is behind it; a number's has no other way there
  };

  // A lane is moved by its grip: dragged, or with the arrow keys, in which case the focus goes with it.
  let carried = null;
  const moves = (uid, to) => tell({ do: "move", lane: Number(uid), to });
  const carry = () => {
    const grip = carried && document.getElementById(carried.id);
    if (!grip || Number(grip.dataset.place) !== carried.to) return;
    grip.focus({ preventScroll: true });
    grip.closest("li").scrollIntoView({ block: "nearest" });
    carried = null;
  };
  document.addEventListener("keydown", (event) => {
    const row = event.target.closest?.(".lane-item");
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const grip = row?.querySelector(".lane-grip");
    if (!step || !grip || !(event.altKey || event.target === grip)) return;
    event.preventDefault();
    const to = Number(grip.dataset.place) + step;
    if (to < 0 || to >= document.querySelectorAll(".lane-item").length) return;
    carried = { id: grip.id, to };
    moves(grip.dataset.grip, to);
  });
  // Where it would go is a line between two lanes. A drag that ends elsewhere, or by Escape, moves nothing.
  let drag = null;
  const items = () => [...document.querySelectorAll(".lane-item")];
  const drop = (event) => {
    const others = items().filter((item) => item !== drag.item);
    const below = others.findIndex((item) => {
      const { top, height } = item.getBoundingClientRect();
      return event.clientY < top + height / 2;
    });
    drag.to = below < 0 ? others.length : below;
    for (const item of items()) item.classList.remove("before", "after");
    if (below < 0) others.at(-1)?.classList.add("after");
    else others[below].classList.add("before");
  };
  const letGo = () => {
    drag?.item.classList.remove("dragged");
    for (const item of items()) item.classList.remove("before", "after");
    drag = null;
  };
  document.addEventListener("pointerdown", (event) => {
    const grip = event.target.closest?.(".lane-grip");
    if (!grip || event.button) return;
    grip.setPointerCapture(event.pointerId);
    drag = { grip, item: grip.closest("li"), to: null };
  });
  document.addEventListener("pointermove", (event) => {
    if (!drag) return;
    drag.item.classList.add("dragged");
    drop(event);
  });
  document.addEventListener("pointerup", () => {
    if (drag && drag.to !== null && drag.to !== Number(drag.grip.dataset.place)) moves(drag.grip.dataset.grip, drag.to);
    letGo();
  });
  document.addEventListener("pointercancel", letGo);
  document.addEventListener("keydown", ({ key }) => key === "Escape" && letGo());

  // Flags that are pasted are a lane at once.
  document.addEventListener("paste", ({ target }) => {
    if (!target.closest?.("#flags")) return;
    setTimeout(() => target.dispatchEvent(new KeyboardEvent("keypress", { key: "Enter", bubbles: true })), 60);
  });
