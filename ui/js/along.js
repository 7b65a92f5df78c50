  // Along the answer: lanes by tokens. A span of them that is brushed, here, in a text or in a figure, is what all
  // numbers, verdicts and maps are of; the link says it, and Escape is the whole answer again.
  let read = null; // the run as ui/html/along.py sent it, with the element it came in
  let span = null; // tokens [first, last]
  let spanStart = null; // where a span began that the keyboard widens
  const spanOf = () => (span ? span.join("-") : "");
  const lastToken = () => read.count - 1;
  // Of a page that came with its run nothing has marked one yet.
  const tokenSelected = () => window.kvq.token ?? document.querySelector("#pick-token input")?.value;
  const within = (token) => Math.min(Math.max(0, Math.round(token)), lastToken());
  const VERDICT = "verdict";
  const SAID = {
    kld: (f) => significant(f.kld_mean, 2),
    kld_mean: (f) => significant(f.kld_mean, 2),
    tail: (f) => significant(f.tail?.value, 2),
    flips: (f) => percent(f.flip_rate),
    near_ties: (f) => (f.flips ? `${f.near_tie_flips} of ${plural(f.flips, "flip")} near a tie in the reference.` : "No flips."),
    flip_rate: (f) => percent(f.flip_rate, 1),
    above_floor: (f) => percent(f.above_floor),
    acceptance: (f) => percent(f.acceptance, 1),
    tokens_a_step: (f) => (isNumber(f.tokens_a_step) ? f.tokens_a_step.toFixed(2) : MISSING),
    bits: (f) => `${bitsText(f.key_bits)} / ${bitsText(f.value_bits)}`,
    width: (f) => bitsText(isNumber(f.key_bits) ? (f.key_bits + f.value_bits) / 2 : null),
    size: (f) => percent(isNumber(f.stored_bytes) ? f.stored_bytes / f.fp16_bytes : null),
    bytes: (f) => inBytes(f.stored_bytes),
    [VERDICT]: (f) => f.verdict.word,
  };
  const TONES = ["good", "warn", "bad", "quiet"];
  const toned = (place, tone) => {
    place.classList.remove(...TONES);
    place.classList.add(tone);
  };
  // One number of the page: of the span, or as the server wrote it.
  const rewrite = (place, found, title) => {
    const own = place.closest("#along");
    if (!found) {
      if (place.dataset.whole === undefined) return;
      [place.textContent, place.title] = [place.dataset.whole, place.dataset.said];
      if (place.dataset.tone) toned(place, place.dataset.tone);
      for (const name of ["whole", "said", "tone"]) delete place.dataset[name];
      return;
    }
    const name = place.dataset.number;
    if (!own && place.dataset.whole === undefined) {
      [place.dataset.whole, place.dataset.said] = [place.textContent, place.title];
      if (name === VERDICT) place.dataset.tone = TONES.find((tone) => place.classList.contains(tone)) ?? "quiet";
    }
    const text = SAID[name](found);
    if (place.textContent !== text) place.textContent = text;
    place.title = title;
    if (name === VERDICT) toned(place.matches(".badge, .tone") ? place : (place.previousElementSibling ?? place), found.verdict.tone);
  };
  const lastly = { of: null, whole: null, found: null }; // figures are computed once a span
  const figuresNow = () => {
    if (lastly.of !== read) Object.assign(lastly, { of: read, whole: figuresOf(read, 0, lastToken()), at: "", found: null });
    if (span && lastly.at !== spanOf()) Object.assign(lastly, { at: spanOf(), found: figuresOf(read, ...span) });
    return span ? lastly.found : lastly.whole;
  };
  const tokenWords = (first, last) => (first === last ? `token ${first}` : `tokens ${first} to ${last}`);
  const renumber = () => {
    const { lanes, floors } = figuresNow();
    const title = span ? `of ${tokenWords(...span)}` : "of the whole answer";
    for (const place of document.querySelectorAll("#right [data-number], #legend [data-number]")) {
      const { of, floor } = place.closest("[data-of], [data-floor]")?.dataset ?? {};
      const found = floor !== undefined ? floors[Number(floor)] : lanes[Number(of)];
      rewrite(place, span || place.closest("#along") ? found : null, title);
    }
  };
  const tokensIn = () => {
    for (const part of document.querySelectorAll("#right [data-t]")) {
      const inside = Boolean(span) && numbers(part).some((token) => token >= span[0] && token <= span[1]);
      if (part.classList.contains("in-span") !== inside) part.classList.toggle("in-span", inside);
    }
  };
  // Where a token stands over the strips, in percent: they begin at token 1, the first that is scored.
  const leftOf = (token) => (100 * (token - 1)) / Math.max(1, lastToken());
  const placeOver = (element, first, last) => {
    element.style.left = `${Math.max(0, leftOf(first))}%`;
    element.style.width = `${leftOf(last + 1) - Math.max(0, leftOf(first))}%`;
  };
  const outline = () => {
    const [brush, token] = ["brush", "token"].map((name) => document.querySelector(`.along-${name}`));
    brush.hidden = !span;
    if (span) placeOver(brush, ...span);
    const now = Number(tokenSelected());
    token.hidden = !(now >= 1 && now <= lastToken());
    if (!token.hidden) placeOver(token, now, now);
  };
  const tellSpan = () => {
    const text = document.querySelector(".along-said");
    const scored = span ? Math.max(0, span[1] - Math.max(1, span[0]) + 1) : lastToken();
    text.textContent = span ? `${tokenWords(...span)[0].toUpperCase()}${tokenWords(...span).slice(1)}: ${plural(scored, "scored position")}` : `Whole answer: ${plural(scored, "scored position")}`;
    const words = document.querySelector(".along-words");
    words.hidden = !span;
    words.textContent = span ? `“${read.texts.slice(span[0], span[1] + 1).join("")}”` : "";
    const fields = ["#span-first", "#span-last"].map((id) => document.querySelector(id));
    fields.forEach((field, at) => {
      if (document.activeElement !== field) field.value = span ? span[at] : at * lastToken();
    });
    document.querySelector("[data-span=clear]").disabled = !span;
    document.body.classList.toggle("spanned", Boolean(span));
  };
  const refresh = () => {
    renumber();
    tokensIn();
    outline();
    tellSpan();
  };
  // ``settled``: not while the pointer still moves, for the link and figures follow then.
  const brush = (first, last, settled = true) => {
    if (!read) return;
    const next = first === null ? null : [within(first), within(last)].sort((one, other) => one - other);
    const same = next?.join("-") === (span?.join("-") ?? undefined);
    span = next;
    if (!same) refresh();
    if (!settled) return;
    window.kvqVisit?.remember("span", spanOf());
    drawInSight();
  };
  // Text that is still marked would be brushed again with the next click anywhere.
  const unmark = () => {
    if (getSelection()?.anchorNode?.parentElement?.closest(".tokens")) getSelection().removeAllRanges();
  };
  const unbrush = () => {
    unmark();
    spanStart = null;
    brush(null, null);
  };
  const readSpan = (asked) => {
    const [first, last] = /^(\d{1,6})-(\d{1,6})$/.exec(asked ?? "")?.slice(1).map(Number) ?? [];
    if (first === undefined || Math.max(first, last) > lastToken()) return unbrush();
    brush(first, last);
  };
  // A shade of the tokens' scale, whose colours are square roots.
  const FULL = 2; // nats, as ui/html/escape.py has it
  const paintStrips = () => {
    const scale = colorsOf();
    const red = getComputedStyle(document.body).getPropertyValue("--bad").trim();
    for (const canvas of document.querySelectorAll("#along [data-strip]")) {
      const { kld, same } = read.lanes[Number(canvas.dataset.strip)];
      [canvas.width, canvas.height] = [Math.max(1, kld.length), 10];
      const context = canvas.getContext("2d");
      kld.forEach((value, at) => {
        const part = Math.sqrt(Math.min(1, Math.max(0, Number.isFinite(value) ? value / FULL : 1)));
        context.fillStyle = `rgb(${shadeOf(127 * (2 * part - 1), scale).map(Math.round).join(" ")})`;
        context.fillRect(at, 0, 1, 10);
        if (same[at]) return;
        context.fillStyle = red;
        context.fillRect(at, 8, 1, 2);
      });
    }
  };
  // Called whenever the page changed: another run was drawn, or what shows its numbers was written anew.
  const along = () => {
    const place = document.getElementById("along-data");
    if (!place) {
      read = null;
      return;
    }
    // Gradio may write the same element anew: its strips are blank then.
    const blank = document.querySelector("#along [data-strip]:not([width])");
    if (blank || read?.place !== place || read.text !== place.textContent) {
      const same = read?.run;
      read = { ...readAlong(place.textContent), place, text: place.textContent };
      paintStrips();
      const address = new URLSearchParams(location.search);
      const mine = (address.get("run") ?? read.run) === read.run;
      if (same !== read.run) {
        span = null;
        spanStart = null;
      }
      refresh();
      worstReady();
      if (same !== read.run && mine && address.has("span")) readSpan(address.get("span"));
      (window.requestIdleCallback ?? setTimeout)(() => drawn(read.rule.resampling, read.rule.resampling.resamples * lastToken()));
      return;
    }
    if (span) {
      renumber();
      tokensIn();
    }
    outline();
  };
  // The pointer over the strips, or over a card's bars: a click selects, a drag brushes.
  const under = (track, x) => {
    const { left, width } = track.getBoundingClientRect();
    const bars = track.matches(".strip") ? track.childElementCount : lastToken();
    const wide = track.matches(".strip") ? track.lastElementChild.getBoundingClientRect().right - left : width;
    return 1 + Math.min(bars - 1, Math.max(0, Math.floor((bars * (x - left)) / Math.max(1, wide))));
  };
  let dragged = null; // { track, from, moved }
  document.addEventListener("pointerdown", (event) => {
    const track = event.target.closest?.(".along-track, #cards .strip");
    if (!track || !read || event.button) return;
    dragged = { track, from: under(track, event.clientX), at: event.clientX, moved: false };
    track.setPointerCapture?.(event.pointerId);
  });
  let asked = null;
  document.addEventListener("pointermove", (event) => {
    if (!dragged || (!dragged.moved && Math.abs(event.clientX - dragged.at) < 4)) return;
    dragged.moved = true;
    asked ??= requestAnimationFrame(() => {
      if (dragged) brush(dragged.from, under(dragged.track, dragged.x), false);
      asked = null;
    });
    dragged.x = event.clientX;
  });
  document.addEventListener("pointerup", (event) => {
    if (!dragged) return brushText();
    const { track, from, moved } = dragged;
    dragged = null;
    if (moved) return brush(from, under(track, event.clientX));
    if (event.shiftKey) return reach(from);
    select(from);
  });
  document.addEventListener("pointercancel", () => (dragged = null)); // the page is scrolled
  // Text that is marked as one marks text.
  const brushText = () => {
    const marked = getSelection();
    if (!read || !marked || marked.isCollapsed) return;
    const text = marked.anchorNode?.parentElement?.closest(".tokens");
    if (!text || !text.contains(marked.focusNode)) return;
    const found = [...text.querySelectorAll("[data-t]")].filter((part) => marked.containsNode(part, true)).flatMap(numbers);
    if (found.length > 1) brush(Math.min(...found), Math.max(...found));
  };
  // From the token that is selected to another one.
  const reach = (token) => {
    spanStart ??= Number(tokenSelected() ?? token);
    brush(spanStart, token);
  };
  // A figure over tokens, steps or places in the cache: what is marked in it.
  const brushFigure = ({ range, lassoPoints }, { axis, of }) => {
    const ends = Object.entries(range ?? lassoPoints ?? {}).find(([name]) => name.startsWith(axis))?.[1];
    if (!ends || !read) return;
    const shift = { token: 0, step: 1, position: -read.prompt }[of];
    const [low, high] = [Math.min(...ends) + shift, Math.max(...ends) + shift];
    if (high < 0) return; // of the prompt alone, which is not scored here
    unmark();
    brush(Math.ceil(low - 0.5), Math.floor(high + 0.5));
  };
  document.addEventListener("change", ({ target }) => {
    if (!read || !target.matches?.("#span-first, #span-last")) return;
    const [first, last] = ["#span-first", "#span-last"].map((id) => Number(document.querySelector(id).value));
    brush(first, last);
    tellSpan();
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-span=clear]")) unbrush();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && span && !event.defaultPrevented) unbrush();
  });
  // A figure of the tokens that are brushed: those over tokens show these alone, and means over steps are means of theirs.
  const spanned = (figure) => {
    const { span: how } = figure.layout.meta ?? {};
    const layout = how ? { ...figure.layout, dragmode: "select", selectdirection: how.axis === "x" ? "h" : "v", selections: [] } : figure.layout;
    if (!span || !read) return { ...figure, layout };
    if (layout.meta?.rate) return rated({ ...figure, layout }, figuresNow().lanes);
    return meant({ ...figure, layout: how ? zoomed(layout, how) : layout });
  };
  const FEW = 6; // tokens, of which each has its tick: Plotly would set some between them
  const wholesOf = (first, last) => Array.from({ length: Math.max(0, last - first + 1) }, (_, at) => first + at);
  const noted = (layout) => {
    const none = { text: "Not looked at in these tokens", xref: "paper", yref: "paper", x: 0.5, y: 1, showarrow: false };
    return { ...layout, annotations: [...(layout.annotations ?? []), none] };
  };
  const zoomed = (layout, { axis, of }) => {
    const shift = { token: 0, step: -1, position: read.prompt }[of];
    const [first, last] = [Math.max(0, span[0] + shift), span[1] + shift]; // the first token was read by no step
    const found = { ...layout };
    for (const name of Object.keys(layout).filter((key) => new RegExp(`^${axis}axis\\d*$`).test(key))) {
      const range = [Math.min(first, last) - 0.5, last + 0.5];
      if (layout[name].autorange === "reversed") range.reverse();
      const ticks = last - first < FEW ? { tickmode: "array", tickvals: wholesOf(first, last) } : {};
      found[name] = { ...layout[name], ...ticks, autorange: false, range };
    }
    return last < 0 ? noted(found) : found;
  };
  const meant = (figure) => {
    if (!figure.data.some((trace) => trace.meta?.steps)) return figure;
    let top = 0;
    let seenAny = false;
    const data = figure.data.map((trace) => {
      const { steps } = trace.meta ?? {};
      if (!steps) return trace;
      const values = (steps.numbers ??= unpacked(steps.values));
      const whole = meanOfSteps({ ...steps, values }, ...span);
      const z = whole && trace.meta.lanes ? whole.filter((_, row) => !isOff(trace.meta.lanes[row])) : whole;
      seenAny ||= Boolean(z);
      for (const row of z ?? []) for (const value of row) top = Math.max(top, Math.abs(value));
      return { ...trace, z: z ?? plain(trace.z).map((row) => row.map(() => null)) };
    });
    const { coloraxis } = figure.layout;
    const scale = seenAny && top ? { ...coloraxis, cmax: top, cmin: coloraxis.cmin < 0 ? -top : 0 } : coloraxis;
    const layout = { ...figure.layout, coloraxis: scale };
    return { data, layout: seenAny ? layout : noted(layout), config: figure.config };
  };
