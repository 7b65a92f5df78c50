  // Numbers in the words of ui/html/numbers.py.
  const MISSING = "–";
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const significant = (value, digits = 3) => {
    if (!isNumber(value)) return MISSING;
    if (value === 0) return "0";
    if (Math.abs(value) < 1e-3) return value.toExponential(Math.max(0, digits - 2)).replace("e+", "e");
    const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
    return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  };
  const percent = (part, digits = 0) => (isNumber(part) ? `${(100 * part).toFixed(digits)} %` : MISSING);
  const bitsText = (value) => (isNumber(value) ? String(Number(value.toFixed(2))) : MISSING);
  const inBytes = (count) => {
    if (!isNumber(count)) return MISSING;
    const [unit, scale] = [["MB", 1e6], ["KB", 1e3]].find(([, least]) => count >= least) ?? ["B", 1];
    return unit === "B" ? `${count.toFixed(0)} B` : `${significant(count / scale, count / scale < 10 ? 3 : 2)} ${unit}`;
  };
  const plural = (count, noun) => `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
  const quoted = (text) => `“${text}”`;
  const meanOf = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
