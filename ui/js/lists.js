  // Each tab holds the whole of a list that the browser keeps: what changes in one is told to the others, which would
  // write over it else. told: hands on what another tab did. So may two answers of the server that are under way at once,
  // one of them to what another tab did: what goes without having been forgotten is put back where it was. What another
  // tab did while this page was on its way is told, and asked for, once the page is there: its list was read long before.
  const listOfTabs = (name, form, told) => {
    const channel = new BroadcastChannel(`kvq-${name}`);
    let known = new Map(); // id -> entry, as text
    const forgotten = new Set();
    let early = []; // until the form is filled, which is the last of a page to come
    const me = Math.random();
    const hear = ({ to = me, put: theirs, gone: without }) => {
      if (to !== me) return;
      for (const id of without) forgotten.add(id);
      const put = theirs.filter((entry) => known.get(entry.id) !== JSON.stringify(entry));
      const gone = without.filter((id) => known.has(id));
      if (put.length + gone.length) told({ put, gone });
    };
    channel.onmessage = ({ data }) => {
      if (!data.from) return early ? early.push(data) : hear(data);
      channel.postMessage({ to: data.from, put: [...known.values()].map((entry) => JSON.parse(entry)), gone: [] });
    };
    const there = () => {
      if (!early || !window.kvqVisit?.isFilled(form)) return;
      const heard = early;
      early = null;
      heard.forEach(hear);
      channel.postMessage({ from: me });
    };
    document.addEventListener("kvq-filled", there);
    there();
    const changed = (entries, most) => {
      const now = new Map((entries ?? []).map((entry) => [entry.id, JSON.stringify(entry)]));
      for (const id of now.keys()) forgotten.delete(id);
      const put = [...now.keys()].filter((id) => known.get(id) !== now.get(id));
      const gone = [...known.keys()].filter((id) => forgotten.has(id));
      const stay = [...known.keys()].filter((id) => !forgotten.has(id));
      const isWhole = stay.every((id) => now.has(id));
      const ids = isWhole ? [...now.keys()] : [...new Set([...now.keys()].filter((id) => !known.has(id)).concat(stay))].slice(0, most);
      known = new Map(ids.map((id) => [id, now.get(id) ?? known.get(id)]));
      const read = (some) => some.map((id) => JSON.parse(now.get(id) ?? known.get(id)));
      if (ids.some((id) => !now.has(id))) told({ whole: read(ids) });
      if (put.length + gone.length) channel.postMessage({ put: read(put), gone });
    };
    return { changed, forget: (id) => forgotten.add(id) };
  };
  const tells = (box) => (told) => write(box, JSON.stringify({ ...told, at: performance.now() }));
  const toldRun = tells("#history-told");
  const lists = {
    runs: listOfTabs("runs", "left", toldRun),
    studies: listOfTabs("studies", "study-left", tells("#study-told")),
  };

  // Runs are named where they are listed. A run that joins the list writes it anew, into the elements that are there: the
  // name that is being typed moves on with its run.
  let naming = null;
  let movesOn = false;
  const beginsName = (input, typed) => {
    if (input.dataset?.runName) naming = { run: input.dataset.runName, input, typed };
  };
  document.addEventListener("focusin", ({ target }) => beginsName(target, movesOn));
  document.addEventListener("input", ({ target }) => beginsName(target, true));
  document.addEventListener("focusout", ({ target }) => {
    if (target === naming?.input) setTimeout(() => target === naming?.input && target !== document.activeElement && (naming = null));
  });
  document.addEventListener("change", ({ target }) => {
    if (!target.dataset?.runName || movesOn) return;
    naming = null;
    toldRun({ run: target.dataset.runName, name: target.value });
  });
  const nameOn = () => {
    if (!naming) return;
    const { run, input: before, typed } = naming;
    const input = document.querySelector(`[data-run-name="${run}"]`);
    if (input === before && input.closest("details").open) return;
    const left = ![before, document.body, null].includes(document.activeElement);
    const { value, selectionStart } = before;
    naming = null;
    if (input !== before) before.value = before.defaultValue;
    if (!input || left) return;
    for (let fold = input.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    input.value = typed ? value : input.defaultValue;
    movesOn = true;
    input.focus({ preventScroll: true });
    movesOn = false;
    input.setSelectionRange(selectionStart, selectionStart);
  };
