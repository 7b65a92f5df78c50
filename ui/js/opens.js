  // A run's file that is chosen, or dropped on the page, is kept by the server, and the page goes to its run. A field
  // keeps what is dropped on it.
  const openFile = async (file) => {
    const said = document.getElementById("open-said");
    said.textContent = "Opening";
    const answer = await fetch(`${window.gradio_config?.root ?? location.origin}/open`, { method: "POST", body: file }).catch(() => null);
    const { run, detail } = (await answer?.json().catch(() => null)) ?? { detail: "The server did not answer." };
    if (run) location.assign(`?run=${run}`);
    else said.textContent = detail;
  };
  const takes = ({ target, dataTransfer }) => dataTransfer?.types.includes("Files") && document.getElementById("open-file") && !target.closest?.("input, textarea");
  document.addEventListener("change", ({ target }) => {
    if (target.id === "open-file" && target.files.length) openFile(target.files[0]);
  });
  document.addEventListener("dragover", (event) => takes(event) && event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (!takes(event)) return;
    event.preventDefault();
    openFile(event.dataTransfer.files[0]);
  });
  // Shown once a run's lanes are, above it: before, it would stand first and move.
  const shows = setInterval(() => {
    if (!document.querySelector(".lane-switch")) return;
    clearInterval(shows);
    document.querySelector("#opens [hidden]")?.removeAttribute("hidden");
  }, 300);
