  // A file of prompts is read here and sent as text with the form: the server takes no uploads.
  const base64 = (bytes) => {
    let text = "";
    for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
    return btoa(text);
  };
  document.addEventListener("change", async ({ target }) => {
    const box = target.dataset?.file;
    const file = target.files?.[0];
    if (!box || !file) return;
    const told = { name: file.name, bytes: file.size };
    if (file.size <= Number(target.dataset.most)) told.data = base64(new Uint8Array(await file.arrayBuffer()));
    target.parentElement.querySelector("output").textContent = file.name;
    write(`#${box}`, JSON.stringify({ ...told, at: performance.now() }));
    target.value = ""; // the same file can be chosen again once it was changed
  });
