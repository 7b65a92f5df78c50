  // The prompt's words, tinted by the attention that the selected token gains and loses under a lane; plain where its
  // own step was not looked at.
  let reading = null; // what ui/html/reading.py sent, with the element it came in
  const readReading = (place) => {
    const found = { ...JSON.parse(place.textContent), place, text: place.textContent };
    for (const row of [found, ...found.lanes]) for (const name of ["reference", "rows"]) if (row[name]) row[name] = unpacked(row[name]);
    for (const lane of found.lanes) {
      for (const kind of ["key", "value"]) {
        if (!lane[kind]) continue;
        lane[kind].bits = spread(lane[kind].bits);
        if (lane[kind].packed) lane[kind].packed = unpacked(lane[kind].packed);
      }
    }
    return found;
  };
  const readingLane = () => reading.lanes.find(({ of }) => of === Number(document.getElementById("reading-lane").value)) ?? reading.lanes[0];
  const tokenNow = () => Math.min(Math.max(1, Number(tokenSelected()) || 1), Number(document.getElementById("replay-token").max));
  // Shares of the attention in each bin of positions, by the step that was looked at.
  const massOf = (rows, look) => {
    const bins = reading.edges.length - 1;
    return Array.from(rows.subarray(look * bins, (look + 1) * bins), (code) => (code / 255) ** 2);
  };
  const points = (part) => `${part > 0 ? "+" : "−"}${significant(Math.abs(100 * part), 2)} points`;
  // Black or white, whichever is read better on a ground: one of them always has 4.5 to 1.
  const inkOn = (ground) => {
    const [red, green, blue] = ground.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
  };
  const FAINT = 5e-4; // of the attention: a change below is as good as none
  const tinted = (values, mode) => {
    const most = Math.max(...values.map(Math.abs), FAINT);
    const scale = mode === "change" ? (isDark() ? SCALE_DARK : SCALE) : colorsOf();
    return values.map((value) => {
      if (Math.abs(value) < FAINT) return null;
      const part = Math.sqrt(Math.abs(value) / most);
      return shadeOf(mode === "change" ? 127 * part * Math.sign(value) : 127 * (2 * part - 1), scale).map(Math.round);
    });
  };
  // The words of the prompt and of the answer so far, once a run; their tints change.
  const layWords = () => {
    const text = document.querySelector(".reading-text");
    const parts = reading.texts.map((piece, at) => {
      const part = document.createElement("i");
      part.textContent = piece;
      if (reading.edges[at] >= reading.prompt) part.className = "answered";
      return part;
    });
    text.replaceChildren(...parts);
  };
  const mostNamed = (changes, sign) => {
    const found = changes.map((value, at) => ({ value, at })).filter(({ value, at }) => value * sign > FAINT && reading.texts[at].trim());
    found.sort((one, other) => (other.value - one.value) * sign);
    return found.slice(0, 3).map(({ value, at }) => `${quoted(shownAs(reading.texts[at]))} (${points(value)})`);
  };
  const saidOfWords = (lane, token, changes) => {
    const [lost, gained] = [mostNamed(changes, -1), mostNamed(changes, 1)];
    const parts = [lost.length ? `reads less of ${lost.join(", ")}` : "", gained.length ? `more of ${gained.join(", ")}` : ""].filter(Boolean);
    const whole = read ? ` ${quoted(read.tokens[token])}` : "";
    return `Choosing token ${token}${whole}, ${lane.label} ${parts.length ? parts.join(" and ") : "reads as full precision does"}.`;
  };
  const tintWords = (token) => {
    const [lane, mode] = [readingLane(), document.getElementById("reading-mode").value];
    const told = document.querySelector(".reading-said");
    const look = reading.steps.indexOf(token - 1);
    const parts = [...document.querySelector(".reading-text").children];
    const there = reading.prompt + token - 1; // tokens that this step reads, its own place among them
    parts.forEach((part, at) => part.classList.toggle("to-come", reading.edges[at] > there));
    if (look < 0 || !lane.rows) {
      const what = reading.steps.length && look < 0 ? ` at token ${token}` : reading.steps.length ? ` of ${lane.label}` : "";
      told.textContent = `Attention${what} was not kept in this run: the words stay plain.`;
      for (const part of parts) {
        part.removeAttribute("style");
        part.removeAttribute("title");
      }
      return;
    }
    const [own, base] = [massOf(lane.rows, look), massOf(reading.reference, look)];
    const changes = own.map((value, at) => value - base[at]);
    const tints = tinted({ change: changes, lane: own, reference: base }[mode], mode);
    parts.forEach((part, at) => {
      const [first, last] = [reading.edges[at], reading.edges[at + 1] - 1];
      part.title = `${quoted(shownAs(reading.texts[at]))}, ${first === last ? `position ${first}` : `positions ${first} to ${last}`}: full precision ${percent(base[at], 1)}, ${lane.label} ${percent(own[at], 1)}, ${points(changes[at])}`;
      if (!tints[at]) return part.removeAttribute("style");
      part.style.setProperty("--ground", `rgb(${tints[at].join(" ")})`);
      part.style.setProperty("--ink", inkOn(tints[at]));
    });
    told.textContent = saidOfWords(lane, token, changes);
  };
  const renderReading = () => {
    const token = tokenNow();
    tintWords(token);
    showStep(token);
  };
  // Of some lanes the one that lost most: what is opened with.
  const worstOf = (lanes) => {
    if (!read) return lanes[0];
    const found = figuresNow().lanes;
    return lanes.reduce((worst, lane) => ((found[lane]?.kld_mean ?? -1) > (found[worst]?.kld_mean ?? -1) ? lane : worst), lanes[0]);
  };
  // A lane that is switched off is no choice, unless all are: of the others the one that lost most is shown in its place.
  // Whether that is another one than before.
  const offerLanes = () => {
    const [pick, before, lanes] = [document.getElementById("reading-lane"), reading.picked, reading.lanes.map(({ of }) => of)];
    const on = lanes.filter((lane) => !off.has(lane));
    for (const option of pick.options) option.hidden = option.disabled = on.length > 0 && off.has(Number(option.value));
    const offered = on.length ? on : lanes;
    if (!offered.includes(before)) reading.picked = worstOf(offered);
    pick.value = reading.picked;
    return reading.picked !== before;
  };
  // Gradio may keep the element and write another selection's words into it, or empty what was laid.
  const isLaid = () => {
    const place = document.getElementById("reading-data");
    const laid = reading && document.querySelector(".reading-text")?.childElementCount === reading.texts.length;
    return laid && reading.place === place && reading.text === place.textContent;
  };
  const switchWords = () => {
    if (isLaid() && offerLanes()) renderReading();
  };
  // Called whenever the page changed.
  const readWords = () => {
    const place = document.getElementById("reading-data");
    if (!place) {
      reading = null;
      return;
    }
    if (isLaid()) return;
    lay(place, reading?.run === JSON.parse(place.textContent).run ? reading.picked : null);
  };
  const lay = (place, picked) => {
    reading = { ...readReading(place), picked };
    offerLanes();
    layWords();
    steady();
    renderReading();
  };
  // What is under the pointer in a figure over tokens or positions, in words.
  const wordAt = (x, of) => {
    if (!read) return null;
    const position = Math.round(x + { token: read.prompt, step: read.prompt + 1, position: 0 }[of]);
    if (position >= read.prompt) return read.tokens[position - read.prompt] ?? null;
    const bin = reading?.edges.findIndex((start, at) => position >= start && position < reading.edges[at + 1]) ?? -1;
    return bin >= 0 ? shownAs(reading.texts[bin]) : null;
  };
  const sayWords = (node, point, words) => {
    const place = node.parentElement;
    let said = place?.querySelector(".hover-words");
    if (!said) {
      said = document.createElement("p");
      said.className = "hover-words muted";
      place?.append(said);
    }
    const found = Object.entries(words).map(([axis, of]) => [of, wordAt(point?.[axis], of)]).filter(([, word]) => word);
    said.textContent = found.map(([of, word]) => (of === "step" ? `choosing ${quoted(word)}` : quoted(word))).join(", ");
  };
  document.addEventListener("change", ({ target }) => {
    if (!reading || !target.matches?.("#reading-lane, #reading-mode")) return;
    reading.picked = Number(document.getElementById("reading-lane").value);
    renderReading();
  });
