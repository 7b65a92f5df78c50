(kept) => {
  // What outlasts a page: its address, the form as it was left, and a server that went away.
  const NAMES = ["run", "vs", "c", "preset", "learn"];
  const named = (query) => {
    const asked = new URLSearchParams(query);
    return new URLSearchParams(NAMES.filter((name) => asked.has(name)).map((name) => [name, asked.get(name)])).toString();
  };
  const address = () => named(location.search);
  let here = address();
  // A run or a step that comes into view on this page is a place to come back to.
  const follow = (query) => {
    if (named(query) === here) return;
    here = named(query);
    history.pushState(null, "", `?${new URLSearchParams(query)}`);
    save();
  };
  // What of a run is looked at: in the address; a view is a place to come back to, a selection is not.
  const remember = (name, value, place = false) => {
    const now = new URL(location);
    if (value) now.searchParams.set(name, value);
    else now.searchParams.delete(name);
    if (now.href === location.href) return;
    if (place) history.pushState(null, "", now);
    else history.replaceState(null, "", now);
  };
  addEventListener("popstate", () => {
    if (address() !== here) return location.reload();
    window.kvq?.look(new URLSearchParams(location.search));
  });

  // The form is kept under the address it was filled in at: without a query in this browser, else in this tab alone and
  // for coming back, since a link that is opened means what it says. So does one that holds a form.
  const coming = performance.getEntriesByType("navigation")[0]?.type;
  const LENT = "kvq-lent"; // this tab was opened by such a link
  const isLent = () => {
    try {
      if (coming !== "navigate") return sessionStorage.getItem(LENT) === "1";
      const asked = new URLSearchParams(location.search).has("form");
      sessionStorage.setItem(LENT, asked ? "1" : "0");
      return asked;
    } catch {
      return false; // forbidden: nothing is kept anyway
    }
  };
  const lent = isLent();
  const VERSION = 1;
  const root = window.gradio_config?.root ?? location.origin;
  const key = () => `kvq-form ${root}?${here}`;
  const draft = {};
  let touched = false;
  const safely = (work) => {
    try {
      return work(here || lent ? sessionStorage : localStorage);
    } catch {
      return null; // storage is full or forbidden: the page works without
    }
  };
  const save = () => {
    if (!touched || !draft.values || !draft.lanes) return;
    safely((storage) => storage.setItem(key(), JSON.stringify({ version: VERSION, ...draft })));
  };
  const keep = (part) => {
    Object.assign(draft, part);
    save();
  };
  const restored = (here || lent) && coming === "navigate" ? null : safely((storage) => storage.getItem(key()));
  // Until somebody has, the form is the run's own and is still being filled: nothing is said to differ.
  const begin = () => {
    touched = true;
    document.body.classList.add("touched");
  };
  if (restored) begin();
  else if (lent) document.body.classList.add("touched");
  // What differs from the run is in the address, too, once somebody has touched the form.
  const write = (form) => touched && remember("form", form);
  const touch = ({ target }) => {
    if (target.closest?.("#left, [data-suggest]")) begin();
    // While the server is away Gradio tells nothing: of the form only the prompt can be changed then.
    if (away && target.closest?.("#prompt") && draft.values) keep({ values: { ...draft.values, prompt: target.value } });
  };
  for (const kind of ["input", "click"]) document.addEventListener(kind, touch, true);

  // Gradio notices a lost connection only while an answer is under way, and then answers no press any more.
  const LOOK_MS = 4000;
  const PATIENCE_MS = 10000;
  const LOST = "kvq-lost"; // the server that went away, until the page knows who answers now
  let away = false;
  let app = null;
  // Forms, by their columns, that the server is filling: what one typed meanwhile would be written over.
  const filling = new Set(["left", "study-left", "decide-left"]);
  const place = document.createElement("div");
  place.id = "away";
  const say = (tone, title, text) => {
    place.innerHTML = `<div class="notice ${tone}" role="alert"><b></b><p></p></div>`;
    place.querySelector("b").textContent = title;
    place.querySelector("p").textContent = text;
    document.getElementById(`${document.documentElement.dataset.at}-right`.replace(/^-/, "")).prepend(place);
  };
  const went = () => {
    if (away) return;
    away = true;
    if (app) safely(() => sessionStorage.setItem(LOST, app)); // now: Gradio may be the first to load the page again
    const text = "It was stopped, or the connection is lost. What is in the form is kept. The page looks every few seconds and goes on by itself; a run that was under way is lost if the server was stopped.";
    say("bad", "The server does not answer", text);
    mark();
  };
  const came = (now) => {
    const lost = safely(() => sessionStorage.getItem(LOST));
    if (app !== null && app !== now) {
      safely(() => sessionStorage.setItem(LOST, app));
      return location.reload(); // another one knows nothing of this page
    }
    if (away) place.remove();
    away = false;
    app = now;
    mark();
    safely(() => sessionStorage.removeItem(LOST));
    if (!lost || lost === now) return;
    say("warn", "The server was started again", "A run that was under way is lost; nothing of it was kept. The form is as it was: press Run.");
    document.getElementById("run")?.addEventListener("click", () => place.remove(), { once: true });
  };
  const mark = () => {
    document.body.classList.toggle("away", away);
    const shut = {
      "#model, #options, #stress, .chips": away,
      "#launch, #lanes": away || filling.has("left"),
      "#setup, #differs": filling.has("left"),
      "#study-left": filling.has("study-left"),
      "#decide-left": filling.has("decide-left"),
    };
    for (const [parts, is] of Object.entries(shut)) for (const part of document.querySelectorAll(parts)) part.inert = is;
  };
  // What had the focus in a form that is being filled, or was to have it, has it once the form is there, unless somebody
  // went elsewhere meanwhile.
  let awaited = null;
  const focus = (element) => {
    if (element?.closest("[inert]")) awaited = element;
    else element?.focus({ preventScroll: true });
  };
  const fill = (form, begins) => {
    if (begins) {
      awaited = document.activeElement;
      filling.add(form);
      return mark();
    }
    if (!filling.delete(form)) return;
    mark();
    if (!document.activeElement?.offsetParent && awaited && !awaited.closest("[inert]")) focus(awaited);
    document.dispatchEvent(new Event("kvq-filled"));
  };
  mark();
  const look = async () => {
    try {
      const answer = await fetch(`${root}/gradio_api/app_id`, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
      if (!answer.ok) return went();
      came(String((await answer.json()).app_id)); // as storage holds it
    } catch {
      went();
    }
  };
  const watch = async () => {
    if (!document.hidden) await look();
    setTimeout(watch, away ? LOOK_MS / 2 : LOOK_MS);
  };
  watch();

  const isFilled = (form) => !filling.has(form);
  window.kvqVisit = { fill, focus, follow, isFilled, keep, remember, write };
  return [kept, restored];
}
