  // A file that is dropped on the page goes to the button that opens a run's file; a field keeps what is dropped on it.
  const opener = () => document.getElementById("open-file")?.parentElement?.querySelector("input[type=file]");
  const taken = ({ target, dataTransfer }) => dataTransfer?.types.includes("Files") && opener() && !target.closest?.("input, textarea");
  document.addEventListener("dragover", (event) => taken(event) && event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (!taken(event)) return;
    event.preventDefault();
    const given = new DataTransfer();
    given.items.add(event.dataTransfer.files[0]);
    opener().files = given.files;
    opener().dispatchEvent(new Event("change", { bubbles: true }));
  });
