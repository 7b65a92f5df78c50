  // Loss against bits of the tokens that are brushed, as ui/figures/rate.py draws it of the whole answer; what a cache
  // takes stays that of all its tokens.
  const decadesOf = (low, high) => {
    const [first, last, over] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)), Math.log10(high / low)];
    const steps = over < 1 ? [1, 1.5, 2, 3, 4, 5, 7] : over < 2.5 ? [1, 2, 5] : [1];
    return Array.from({ length: Math.max(0, last - first + 1) }, (_, at) => steps.map((step) => step * 10 ** (first + at))).flat();
  };
  const frontOf = (points) => {
    const best = [];
    const ordered = [...points].sort((one, other) => one[0] - other[0] || one[1] - other[1]);
    for (const point of ordered) if (!best.length || point[1] < best.at(-1)[1]) best.push(point);
    return best;
  };
  const inShort = (value, digits) => String(Number(value.toPrecision(digits)));
  const rated = (figure, lanes) => {
    const { name, factor } = figure.layout.meta.rate;
    const lossOf = ({ meta }) => {
      const value = lanes[meta?.lane]?.[name];
      return isNumber(value) ? factor * value : null;
    };
    const points = figure.data.filter((trace) => lossOf(trace) !== null).map((trace) => [plain(trace.x)[0], lossOf(trace)]);
    const positive = points.map(([, value]) => value).filter((value) => value > 0);
    const floor = Math.min(...(positive.length ? positive : [1e-6])) / 3; // where a 0 is drawn
    const data = figure.data.map((trace) => {
      const best = trace.meta?.front && frontOf(points);
      if (best) return { ...trace, x: best.map(([bits]) => bits), y: best.map(([, value]) => Math.max(value, floor)) };
      const value = lossOf(trace);
      if (value !== null) return { ...trace, y: [Math.max(value, floor)], text: [inShort(value, 3)] };
      return Number.isInteger(trace.meta?.lane) ? { ...trace, y: [null] } : trace;
    });
    const none = positive.length < points.length;
    const ticks = decadesOf(floor, Math.max(...positive)).filter((at) => !none || at > 1.5 * floor); // none of zeros alone
    const tickvals = none ? [floor, ...ticks] : ticks;
    const ticktext = [...(none ? ["0"] : []), ...ticks.map((at) => inShort(at, 6))];
    const { xaxis, yaxis } = figure.layout;
    const title = { ...xaxis.title, text: `${xaxis.title.text}, of the whole cache` };
    return { ...figure, data, layout: { ...figure.layout, xaxis: { ...xaxis, title }, yaxis: { ...yaxis, tickvals, ticktext } } };
  };
