  // The answer once more, token by token: windows move, bits change, and the words are tinted as they were read. It moves
  // by itself only where motion is wanted; else Play goes one token on.
  const PACE_MS = 700;
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let playing = null;
  let settling = null;
  // A lane's tensor while a step reads: tokens there, how many of them are in its window, and bits of each.
  const stoodAt = ({ bits, sink, packed }, step) => {
    if (!packed) return { bits, window: null };
    const there = bits.length - (packed.length - 1 - step);
    const end = sink + packed[step];
    return { bits: bits.slice(0, there).map((width, at) => (at >= sink && at < end ? width : 16)), window: Math.max(0, there - end) };
  };
  const paintCache = (canvas, tensors, tokens) => {
    const scale = colorsOf();
    [canvas.width, canvas.height] = [tokens, 7];
    const context = canvas.getContext("2d");
    tensors.forEach((found, row) =>
      found?.bits.forEach((width, at) => {
        context.fillStyle = `rgb(${shadeOf(127 * (1.7 * Math.min(1, width / 16) - 0.7), scale).map(Math.round).join(" ")})`;
        context.fillRect(at, 4 * row, 1, 3);
      }),
    );
  };
  const numbersAt = (lane, found, token) => {
    const { kld } = read?.lanes[lane.of] ?? { kld: [] };
    const sofar = Array.from(kld.slice(0, token));
    const bits = found.map((tensor) => (tensor ? bitsText(meanOf(tensor.bits)) : MISSING)).join(" / ");
    const windows = found.map((tensor) => tensor?.window ?? MISSING).join(" / ");
    const parts = [`bits ${bits}`, `window ${windows}`];
    if (sofar.length) parts.push(`KLD ${significant(sofar.at(-1), 2)}, so far ${significant(meanOf(sofar), 2)}`);
    return parts.join(" · ");
  };
  const notKept = () => {
    const still = reading.lanes.filter((lane) => ["key", "value"].some((kind) => lane[kind] && !lane[kind].packed));
    const anew = reading.lanes.filter((lane) => ["key", "value"].some((kind) => lane[kind]?.rewritten));
    const none = reading.lanes.filter((lane) => !lane.key && !lane.value);
    const list = (lanes) => lanes.map(({ label }) => label).join(", ");
    return [
      still.length ? `Of ${list(still)} the caches are shown as they ended: what moved when was not kept.` : "",
      anew.length ? `${list(anew)} stores tokens anew while it decodes; their bits are those of the end.` : "",
      none.length ? `Bits of ${list(none)} were not kept.` : "",
    ].filter(Boolean).join(" ");
  };
  const showStep = (token) => {
    const slider = document.getElementById("replay-token");
    slider.value = token;
    const word = read ? ` ${quoted(read.tokens[token])}` : "";
    slider.setAttribute("aria-valuetext", `token ${token}${word}`);
    document.querySelector(".replay output").textContent = `${token} of ${slider.max}${word}`;
    const longest = Math.max(1, ...reading.lanes.flatMap((lane) => ["key", "value"].map((kind) => lane[kind]?.bits.length ?? 0)));
    for (const lane of reading.lanes) {
      const row = document.querySelector(`.replay-row[data-of="${lane.of}"]`);
      const found = ["key", "value"].map((kind) => lane[kind] && stoodAt(lane[kind], token - 1));
      paintCache(row.querySelector("canvas"), found, longest);
      row.querySelector(".replay-numbers").textContent = numbersAt(lane, found, token);
    }
    const note = document.querySelector(".replay-note");
    const kept = notKept();
    if (note.textContent !== kept) note.textContent = kept;
  };
  // An answer that was under way when somebody moved on is of a token that is left: it must not take the move back.
  const moving = () => playing !== null || settling !== null;
  // What is looked at moves at once; the server, and with it the other views, follow when it rests.
  const goTo = (token, rests = true) => {
    const last = Number(document.getElementById("replay-token").max);
    const now = Math.min(Math.max(1, token), last);
    window.kvq.mark(now);
    clearTimeout(settling);
    settling = null;
    if (rests) {
      settling = setTimeout(() => {
        settling = null;
        select(now);
      }, 300);
    }
    return token >= last;
  };
  const pause = () => {
    if (playing === null) return;
    clearInterval(playing);
    playing = null;
    steady();
    select(tokenNow());
  };
  const steady = () => {
    const button = document.querySelector("[data-replay=play]");
    if (button) button.textContent = playing === null ? (calm.matches ? "Next token" : "Play") : "Pause";
  };
  const play = () => {
    if (calm.matches) return goTo(tokenNow() + 1);
    if (tokenNow() >= Number(document.getElementById("replay-token").max)) goTo(1, false);
    playing = setInterval(() => {
      if (!document.getElementById("reading")?.checkVisibility({ visibilityProperty: true }) || goTo(tokenNow() + 1, false)) pause();
    }, PACE_MS);
    steady();
  };
  document.addEventListener("click", (event) => {
    const what = event.target.closest?.("[data-replay]")?.dataset.replay;
    if (!what || !reading) return;
    if (what === "play") return playing === null ? play() : pause();
    pause();
    goTo(tokenNow() + Number(what));
  });
  document.addEventListener("input", ({ target }) => {
    if (target.id !== "replay-token" || !reading) return;
    if (playing !== null) {
      clearInterval(playing);
      playing = null;
      steady();
    }
    goTo(Number(target.value));
  });
  calm.addEventListener("change", () => {
    pause();
    steady();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") pause();
  });
