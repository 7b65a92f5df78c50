  // The editor opens at its lane, which comes into sight with it; whoever opened it goes on in it.
  let entering = false;
  let revision = null;
  const enter = () => {
    const editor = document.querySelector("#editor [data-revision]");
    if (!editor || editor.dataset.revision === revision) return;
    revision = editor.dataset.revision;
    if (!entering) return;
    entering = false;
    document.getElementById("in-lane-method")?.focus({ preventScroll: true });
    editor.scrollIntoView({ block: "nearest" });
    document.querySelector(".lane-row.open")?.scrollIntoView({ block: "nearest" });
  };
  // The lane editor is plain HTML. All that was changed in it since it was opened is told with every change: of several
  // in quick succession Gradio hands on the last.
  let edits = { uid: null, values: {} };
  let focus = null;
  const tell = (action) => write("#lanes-sent", JSON.stringify({ ...edits, do: null, lane: null, ...action, at: performance.now() }));
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
    delete edits.values[target.dataset.place]; // the last one changed comes last
    edits.values[target.dataset.place] = valueOf(target);
    focus = target.id;
    tell({});
  });

  document.addEventListener("pointerdown", () => (focus = null), true);
