  // What is tried where one looks: the server computes it beside the run, and draws it among the run's lanes.
  const act = (told) => write("#act", JSON.stringify({ ...told, at: performance.now() }));
  document.addEventListener("click", ({ target }) => {
    const button = target.closest?.("[data-act]");
    if (!button) return;
    const { act: what, run: tried, cause } = button.dataset;
    // The choice above the offers may have been made a moment ago, before they were written anew.
    const lane = button.closest(".acts-box")?.querySelector("#act-lane").value ?? button.dataset.lane;
    if (button.closest("#acts")) focus = button.id || "act-lane"; // its box is written anew
    act({ do: what, lane: lane === undefined ? null : Number(lane), run: tried, cause });
    if (!button.closest("#acts")) document.getElementById("acts").scrollIntoView({ block: "nearest" });
  });
  document.addEventListener("change", ({ target }) => {
    if (!target.matches?.("[data-act-lane]")) return;
    focus = target.id;
    act({ do: "lane", lane: Number(target.value) });
  });
