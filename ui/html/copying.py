"""Boxes with text to copy, and the script behind their buttons."""

from ui.html.escape import safe

# Whether a text was copied. A frame may forbid the clipboard's own interface, and plain http on a network has none:
# selecting and copying works there, of the text's own field or of one for the moment.
COPIED = """async (text, field) => {
  try { await navigator.clipboard.writeText(text); return true; }
  catch {
    const box = field ?? document.body.appendChild(Object.assign(document.createElement("textarea"), {value: text}));
    box.select();
    const copied = document.execCommand("copy");
    if (!field) box.remove();
    return copied;
  }
}"""
# For gr.HTML(js_on_load=...): one listener for whatever the element comes to hold. A picture is drawn at twice its size
# for sharp text.
COPY_JS = (
    f"const copied = {COPIED};"
    + """
element.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy, button.png");
  if (!button) return;
  if (button.classList.contains("png")) {
    const image = button.parentElement.querySelector("img");
    const canvas = Object.assign(document.createElement("canvas"), {width: 2400, height: 1260});
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    const href = URL.createObjectURL(await new Promise((done) => canvas.toBlob(done, "image/png")));
    Object.assign(document.createElement("a"), {href, download: button.dataset.name}).click();
    setTimeout(() => URL.revokeObjectURL(href), 10000);
    return;
  }
  const field = button.closest(".copybox").querySelector("textarea");
  await copied(field.value, field);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});
"""
)
# The address bar follows what is shown: a box that stands for the page's own state names its query.
FOLLOW_JS = """(html) => {
  const box = new DOMParser().parseFromString(html || "", "text/html").querySelector("[data-follow]");
  if (box) window.kvqVisit?.follow(box.dataset.follow);
}"""


def remember_js(name: str) -> str:
    """The address bar says which ``name`` a box links to: no place of its own to come back to."""
    return f"""(html) => {{
  const field = new DOMParser().parseFromString(html || "", "text/html").querySelector("textarea");
  const id = field && new URL(field.value.trim()).searchParams.get("{name}");
  if (id) window.kvqVisit?.remember("{name}", id);
}}"""


def copy_box(title: str, text: str, lines: int = 1, follow: str = "") -> str:
    """A titled, read-only text with a button; ``follow`` is the query that stands for what it links to."""
    follows = f' data-follow="{safe(follow)}"' if follow else ""
    return (
        f'<div class="copybox{"" if lines == 1 else " tall"}"{follows}><span>{safe(title)}</span>'
        f'<textarea readonly rows="{lines}" aria-label="{safe(title)}" spellcheck="false">\n{safe(text)}</textarea>'
        '<button type="button" class="plain-button copy" aria-live="polite">Copy</button></div>'
    )
