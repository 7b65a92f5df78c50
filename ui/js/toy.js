  // The tour's toy: every setting stands in a table that the server's own methods computed; here it is only drawn.
  const paint = (canvas, codes, columns) => {
    const bytes = Uint8Array.from(atob(codes), (byte) => byte.charCodeAt(0));
    const scale = isDark() ? SCALE_DARK : SCALE;
    canvas.width = columns;
    canvas.height = bytes.length / columns;
    const image = new ImageData(columns, canvas.height);
    bytes.forEach((byte, at) => image.data.set([...shadeOf((byte << 24) >> 24, scale), 255], 4 * at));
    canvas.getContext("2d").putImageData(image, 0, 0);
  };
  const toy = () => {
    const place = document.getElementById("toy");
    if (!place) return;
    const table = (place.table ??= JSON.parse(place.firstElementChild.textContent));
    const slider = document.getElementById("toy-bits");
    const bits = slider.dataset.bits.split(" ")[Number(slider.value)];
    const way = place.querySelector("[name=toy-way]:checked").value;
    const state = `${way} ${bits} ${isDark()}`;
    if (place.dataset.state === state) return;
    place.dataset.state = state;
    const [exact, now] = [table.exact, table[`${way} ${bits}`]];
    slider.setAttribute("aria-valuetext", `${bits} bits`);
    paint(document.getElementById("toy-exact"), exact.codes, Number(place.dataset.columns));
    paint(document.getElementById("toy-stored"), now.codes, Number(place.dataset.columns));
    const most = Math.max(...Object.values(table).flatMap(({ attention }) => attention));
    const bar = (share, at) => `<i style="--exact:${exact.attention[at] / most};--now:${share / most}"><b>${share}</b></i>`;
    place.querySelector(".toy-bars").innerHTML = now.attention.map(bar).join("");
    place.querySelector(".toy-said").textContent = now.said;
  };
  document.addEventListener("input", ({ target }) => target.closest?.("#toy") && toy());
