  // Figures come in the colours of a light ground; on a dark one each colour is drawn as its counterpart there. DARK,
  // from ui/tokens.toml, has them.
  const parts = (color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)).join(", ");
  const DARK_PARTS = Object.fromEntries(Object.entries(DARK).map(([light, dark]) => [parts(light), parts(dark)]));
  const isDark = () => document.body.classList.contains("dark") || document.documentElement.classList.contains("dark");
  const onDark = (value) => {
    if (typeof value === "string") {
      if (value[0] === "#") return DARK[value] ?? value;
      return value.startsWith("rgba(") ? value.replace(/\d+, \d+, \d+/, (found) => DARK_PARTS[found] ?? found) : value;
    }
    if (value === null || typeof value !== "object" || ArrayBuffer.isView(value)) return value;
    if (Array.isArray(value)) return typeof value[0] === "number" && typeof value[1] !== "string" ? value : value.map(onDark);
    return Object.fromEntries(Object.entries(value).map(([name, of]) => [name, onDark(of)]));
  };
  const onGround = (figure) => (isDark() ? onDark(figure) : figure);
