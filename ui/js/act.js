  // What is tried where one looks: the server computes it beside the run, and draws it among the run's lanes.
  const act = (told) => write("#act", JSON.stringify({ ...told, at: performance.now() }));
  // What is asked of the server is told as begun before it answers, where one sees it.
  const ANSWERED_MS = 5000;
  const begun = document.createElement("div");
  begun.className = "begun";
  const begins = () => {
    const place = document.getElementById("act-status");
    begun.innerHTML = '<div class="status busy" role="status"><div><b>Starting</b></div></div>';
    place.before(begun);
    begun.scrollIntoView({ block: "nearest" });
    const answered = () => {
      watched.disconnect();
      begun.remove();
    };
    const watched = new MutationObserver(answered);
    watched.observe(place, { childList: true, subtree: true, characterData: true });
    setTimeout(answered, ANSWERED_MS);
  };
  document.addEventListener("click", ({ target }) => {
    const button = target.closest?.("[data-act]");
    if (!button) return;
    const { act: what, run: tried, cause } = button.dataset;
    // The choice above the offers may have been made a moment ago, before they were written anew.
    const lane = button.closest(".acts-box")?.querySelector("#act-lane").value ?? button.dataset.lane;
    if (button.closest("#acts")) focus = button.id || "act-lane"; // its box is written anew
    act({ do: what, lane: lane === undefined ? null : Number(lane), run: tried, cause });
    if (!["undo", "cancel"].includes(what)) begins();
    else if (!button.closest("#acts")) document.getElementById("acts").scrollIntoView({ block: "nearest" });
  });
  document.addEventListener("change", ({ target }) => {
    if (!target.matches?.("[data-act-lane]")) return;
    focus = target.id;
    act({ do: "lane", lane: Number(target.value) });
  });
