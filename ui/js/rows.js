  // A figure as it is drawn while lanes are off. Curves and points are hidden; of figures with a row a lane the rows
  // that are left move together, and the last of them carries the axis.
  const TYPES = { f4: Float32Array, f8: Float64Array, i1: Int8Array };
  const plain = (values) => {
    if (!values?.bdata) return values;
    const flat = new TYPES[values.dtype](Uint8Array.from(atob(values.bdata), (byte) => byte.charCodeAt(0)).buffer);
    if (!values.shape) return [...flat];
    const columns = Number(values.shape.split(",")[1]);
    return Array.from({ length: flat.length / columns }, (_, row) => [...flat.subarray(row * columns, (row + 1) * columns)]);
  };
  const isOff = (lane) => Number.isInteger(lane) && off.has(lane);
  const axisOf = (name) => `${name[0]}axis${name.slice(1)}`; // y3 -> yaxis3
  const filtered = (figure) => {
    if (!off.size) return figure;
    const data = figure.data.map((trace) => (trace.meta?.lanes ? withoutRows(trace) : isOff(trace.meta?.lane) ? { ...trace, visible: false } : trace));
    return { ...figure, data, layout: together({ ...figure, data }) };
  };
  // One trace whose rows are lanes: meta.lanes names the lane of each.
  const withoutRows = (trace) => {
    const left = (values) => values?.filter((_, at) => !isOff(trace.meta.lanes[at]));
    const y = plain(trace.y);
    const nested = Array.isArray(y?.[0]);
    const found = { ...trace, y: nested ? y.map(left) : left(y) };
    if (trace.customdata) found.customdata = left(trace.customdata);
    if (trace.z) found.z = left(plain(trace.z));
    else found.x = left(plain(trace.x));
    if (Array.isArray(trace.marker?.color)) found.marker = { ...trace.marker, color: left(trace.marker.color) };
    if (trace.marker?.pattern) found.marker.pattern = { ...trace.marker.pattern, shape: left(trace.marker.pattern.shape) };
    return found;
  };
  const together = ({ data, layout }) => {
    const whole = data.find((trace) => trace.meta?.lanes);
    const inner = layout.height - layout.margin.t - layout.margin.b;
    if (whole) {
      const { lanes } = whole.meta;
      return { ...layout, height: layout.height - (inner / (lanes.length + (whole.z ? 0 : 2))) * lanes.filter(isOff).length };
    }
    const lane = new Map(data.map((trace) => [trace.yaxis ?? "y", trace.meta?.lane]));
    const names = Object.keys(layout).filter((key) => /^yaxis\d*$/.test(key) && !layout[key].overlaying);
    const rows = names.map((key) => ({ key, axis: `y${key.slice(5)}`, at: layout[key].domain })).filter(({ at }) => at);
    if (rows.length < 2) return layout;
    rows.sort((one, other) => other.at[1] - one.at[1]);
    const gap = rows[0].at[0] - rows[1].at[1];
    const left = rows.filter(({ axis }) => !isOff(lane.get(axis)));
    const total = left.reduce((sum, { at }) => sum + at[1] - at[0], 0) + gap * Math.max(0, left.length - 1);
    if (!left.length) return layout;
    const now = { ...layout, height: Math.round(total * inner + layout.margin.t + layout.margin.b) };
    const beside = (row) => axisOf(layout[row.key].anchor ?? "x");
    const last = beside(rows.at(-1));
    const tops = new Map();
    let top = total;
    for (const row of rows) {
      const x = beside(row);
      const shown = left.includes(row);
      const size = row.at[1] - row.at[0];
      now[row.key] = { ...layout[row.key], visible: shown };
      now[x] = { ...layout[x], visible: shown };
      if (!shown) continue;
      now[row.key].domain = [Math.max(0, (top - size) / total), top / total];
      tops.set(row, top / total);
      top -= size + gap;
    }
    const carries = beside(left.at(-1));
    if (carries !== last) {
      now[carries] = { ...now[carries], showticklabels: true, title: layout[last].title };
      now[last] = { ...now[last], title: undefined };
    }
    // the first annotations are the rows' titles
    const placed = (part, at) => {
      const row = part.yref === "paper" ? rows[at] : rows.find(({ axis }) => part.yref?.split(" ")[0] === axis);
      if (!row) return part;
      return { ...part, visible: left.includes(row), ...(part.yref === "paper" && tops.has(row) ? { y: tops.get(row) } : {}) };
    };
    now.annotations = layout.annotations?.map(placed);
    now.shapes = layout.shapes?.map((shape) => placed(shape, -1));
    return now;
  };
